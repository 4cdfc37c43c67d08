// What markdown-it uses of the package punycode (names of hosts beyond ASCII), by the browser's own URL parser. Names are
// shown in their ASCII form, so that a link cannot pretend to lead to another host.

export const toASCII = host => new URL("http://" + host).hostname;
export const toUnicode = host => host;

export default { toASCII, toUnicode };
