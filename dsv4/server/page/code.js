// Colors of code by highlight.js: loaded when the first code block with a language appears. These are the languages that
// people ask models about; a block in another one stays plain. The result is HTML with <span class="hljs-...">, which
// markdown.js sanitizes.

import hljs from "highlight.js/lib/highlight.js";
import bash from "highlight.js/lib/languages/bash.js";
import clojure from "highlight.js/lib/languages/clojure.js";
import cmake from "highlight.js/lib/languages/cmake.js";
import cpp from "highlight.js/lib/languages/cpp.js";
import cs from "highlight.js/lib/languages/cs.js";
import css from "highlight.js/lib/languages/css.js";
import dart from "highlight.js/lib/languages/dart.js";
import diff from "highlight.js/lib/languages/diff.js";
import dockerfile from "highlight.js/lib/languages/dockerfile.js";
import elixir from "highlight.js/lib/languages/elixir.js";
import erlang from "highlight.js/lib/languages/erlang.js";
import fortran from "highlight.js/lib/languages/fortran.js";
import go from "highlight.js/lib/languages/go.js";
import haskell from "highlight.js/lib/languages/haskell.js";
import http from "highlight.js/lib/languages/http.js";
import ini from "highlight.js/lib/languages/ini.js";
import java from "highlight.js/lib/languages/java.js";
import javascript from "highlight.js/lib/languages/javascript.js";
import json from "highlight.js/lib/languages/json.js";
import julia from "highlight.js/lib/languages/julia.js";
import kotlin from "highlight.js/lib/languages/kotlin.js";
import llvm from "highlight.js/lib/languages/llvm.js";
import lua from "highlight.js/lib/languages/lua.js";
import makefile from "highlight.js/lib/languages/makefile.js";
import markdown from "highlight.js/lib/languages/markdown.js";
import matlab from "highlight.js/lib/languages/matlab.js";
import nginx from "highlight.js/lib/languages/nginx.js";
import objectivec from "highlight.js/lib/languages/objectivec.js";
import ocaml from "highlight.js/lib/languages/ocaml.js";
import perl from "highlight.js/lib/languages/perl.js";
import php from "highlight.js/lib/languages/php.js";
import powershell from "highlight.js/lib/languages/powershell.js";
import protobuf from "highlight.js/lib/languages/protobuf.js";
import python from "highlight.js/lib/languages/python.js";
import r from "highlight.js/lib/languages/r.js";
import ruby from "highlight.js/lib/languages/ruby.js";
import rust from "highlight.js/lib/languages/rust.js";
import scala from "highlight.js/lib/languages/scala.js";
import scheme from "highlight.js/lib/languages/scheme.js";
import shell from "highlight.js/lib/languages/shell.js";
import sql from "highlight.js/lib/languages/sql.js";
import swift from "highlight.js/lib/languages/swift.js";
import tex from "highlight.js/lib/languages/tex.js";
import typescript from "highlight.js/lib/languages/typescript.js";
import verilog from "highlight.js/lib/languages/verilog.js";
import vim from "highlight.js/lib/languages/vim.js";
import x86asm from "highlight.js/lib/languages/x86asm.js";
import xml from "highlight.js/lib/languages/xml.js";
import yaml from "highlight.js/lib/languages/yaml.js";

const LANGUAGES = { bash, clojure, cmake, cpp, cs, css, dart, diff, dockerfile, elixir, erlang, fortran, go, haskell, http, ini, java,
  javascript, json, julia, kotlin, llvm, lua, makefile, markdown, matlab, nginx, objectivec, ocaml, perl, php, powershell, protobuf, python, r, ruby,
  rust, scala, scheme, shell, sql, swift, tex, typescript, verilog, vim, x86asm, xml, yaml };
for (const [name, language] of Object.entries(LANGUAGES)) hljs.registerLanguage(name, language);
const ALIASES = { cu: "cpp", cuda: "cpp", latex: "tex" };  // beside those that highlight.js knows

// The HTML of the colored code, or null where the language is not known.
export function colored(source, name) {
  const language = ALIASES[name] ?? name;
  return hljs.getLanguage(language) ? hljs.highlight(language, source, true).value : null;
}
