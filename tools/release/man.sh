#!/usr/bin/env bash
# Man pages of dsv4 and of every command below it, from their --help: tools/release/man.sh PROGRAM FOLDER
# writes FOLDER/dsv4.1.gz, dsv4-run.1.gz, dsv4-bench-decode.1.gz, ... Their date is SOURCE_DATE_EPOCH, else today's.

set -euo pipefail
program=$(realpath "$1") folder=$2
rm -rf "$folder"
mkdir -p "$folder"
version=$("$program" --version | sed -n '1s/^dsv4 \([0-9.]*\).*/\1/p')

page() { # page COMMAND...: one page, then those of the commands below it
  local name help line
  name=$(IFS=-; echo "dsv4$*" | sed 's/^dsv4\(.\)/dsv4-\1/')
  help=$("$program" "$@" --help)
  # The first line of --help says what the command does. The header line of a page names the command, not the program.
  help2man --no-info --no-discard-stderr --version-string="$version" --manual="dsv4" \
    --name="$(sed -n '1s/^dsv4: //;1p' <<<"$help")" "$program${*:+ $*}" |
    sed "s/^\.TH DSV4 /.TH ${name^^} /; s/^$(basename "$program") \\\\-/${name} \\\\-/; s/^dsv4 .* \\\\- /${name} \\\\- /" |
    gzip -9n >"$folder/$name.1.gz"
  while read -r line; do
    page "$@" "$line"
  done < <(sed -n '/^Subcommands:/,/^$/s/^  \([a-z]\+\) .*/\1/p' <<<"$help")
}
page
