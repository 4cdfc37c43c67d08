// Formulas by KaTeX: loaded when the first one appears. KaTeX makes elements and sets their style through the CSSOM, which the
// page's policy allows; two commands that would write style attributes are replaced by their nearest relatives. A formula
// that KaTeX cannot read stays as its source. Beside each formula stands MathML for screen readers.

import katex from "katex/katex.mjs";

const OPTIONS = { throwOnError: true, strict: "ignore", trust: false, maxSize: 50, maxExpand: 500 };

export function show(element, source, displayMode) {
  const macros = { "\\pmb": "\\boldsymbol{#1}", "\\fcolorbox": "\\@secondoftwo{#1}{\\colorbox}" };
  try {
    katex.render(source, element, { ...OPTIONS, displayMode, macros });
  } catch (error) {
    element.replaceChildren(source);
    element.title = error.message;
    element.classList.add("unread");
  }
}
