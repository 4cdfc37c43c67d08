#!/usr/bin/env bash
# Real clients against a real server: tools/check_serve.sh [PRESET] [CLIENT ...]. Makes environments in build/venvs with
# the newest and an old release of `openai` and `anthropic`, and one each with LiteLLM, LangChain, instructor,
# pydantic-ai and ollama, all from PyPI; then runs tools/serve/client_*.py, the code of docs/clients, answers under random schemas
# and tools, the JSON-Schema-Test-Suite, huggingface_hub on the cache of `dsv4 pull`, and the web page in Debian's
# Chromium. With CLIENT only these clients. Exit status 77: the packages are not to be had.

set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-cpu}
shift || true
binary=build/$preset/bin/dsv4
venvs=build/venvs

environment() {  # NAME PACKAGE...
  local name=$1 folder=$venvs/$1
  shift
  [ "$(cat "$folder/packages" 2>/dev/null)" = "$*" ] && return
  rm -rf "$folder"
  mkdir -p "$venvs"
  if python3 -m venv "$folder" &&
    "$folder/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: "$@" >"$folder.log" 2>&1; then
    echo "$*" >"$folder/packages"
  else
    echo "the packages of $name are not to be had from PyPI, see $folder.log"
    exit 77
  fi
}

# Large packages, or packages of a single author: where one cannot be had, its checks are skipped.
optional_environment() {  # NAME PACKAGE...
  (environment "$@") || true
}

# The packages of ai-dynamo that its frontend and a worker import. It wants others, of which one is not on PyPI.
optional_dynamo() {
  (environment dynamo 'aiohttp<4' msgspec prometheus-client pyzmq transformers typing-extensions uvloop 'pydantic<2.14' &&
    "$venvs/dynamo/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: --no-deps \
      ai-dynamo==1.6.1 ai-dynamo-runtime==1.6.1 >>"$venvs/dynamo.log" 2>&1) || true
}

[ -x "$binary" ] || { echo "check_serve: no $binary: build preset $preset first" >&2; exit 1; }
environment new openai anthropic
environment old openai==1.40.0 anthropic==0.40.0 'httpx<0.28'
environment litellm litellm mcp
environment langchain langchain-openai langchain-anthropic
environment instructor instructor
environment pydantic_ai 'pydantic-ai-slim[openai]'
environment ollama ollama
environment schema jsonschema
environment hub huggingface_hub
environment kv pyzmq msgspec msgpack pyyaml
environment otlp opentelemetry-proto
optional_environment comply llm-comply
optional_environment aiperf aiperf
optional_dynamo
python=$venvs/new/bin/python status=0
$python tools/serve/check_clients.py "$binary" "$venvs" "$@" || status=1
if [ $# -eq 0 ]; then
  $python tools/serve/check_docs.py "$binary" "$venvs" || status=1
  "$venvs/schema/bin/python" tools/serve/random_formats.py "$binary" || status=1
  "$venvs/hub/bin/python" tests/hub/huggingface_test.py "$binary" || status=1
  # The source package of jsonschema has the public suite of schemas.
  suite=$venvs/schema/suite
  if [ ! -d "$suite/tests" ] && mkdir -p "$suite" &&
    "$venvs/schema/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary jsonschema \
      --dest "$suite" jsonschema >"$suite.log" 2>&1; then
    tar -xzf "$suite"/jsonschema-*.tar.gz -C "$suite" --strip-components=2 --wildcards '*/json/tests'
  fi
  if [ ! -d "$suite/tests" ]; then
    echo "skipped: the JSON-Schema-Test-Suite (no source package, see $suite.log)"
  elif [ -x "build/$preset/bin/schema_suite_test" ]; then
    DSV4_SCHEMA_SUITE=$suite/tests "build/$preset/bin/schema_suite_test" || status=1
  fi
  $python tools/serve/check_proxies.py "$binary" || status=1
  $python tools/serve/check_peers.py "$binary" "$venvs" || status=1
  "$venvs/kv/bin/python" tools/serve/check_kv_events.py "$binary" "build/$preset/bin/kv_events_life" || status=1
  "$venvs/kv/bin/python" tools/serve/check_deploy.py "$binary" || status=1
  "$venvs/otlp/bin/python" tools/serve/check_traces.py "$binary" || status=1
  if "$venvs/dynamo/bin/python" -c 'import dynamo.common.backend' 2>/dev/null; then
    $python tools/serve/check_dynamo.py "$binary" "$venvs/dynamo" || status=1
  else
    echo "skipped: NVIDIA Dynamo (its packages are not to be had)"
  fi
  page=0
  $python tools/serve/check_page.py "$binary" || page=$?
  if [ $page -eq 77 ]; then
    echo "skipped: the web page (no chromium)"
  elif [ $page -ne 0 ]; then
    status=1
  fi
fi
exit $status
