# SPDX-License-Identifier: BSD-3-Clause
# Doxygen's filter of what it reads: makes Markdown and comments show on the site what they show here.

# GitHub's anchor of a heading, made the site's own by the name of its file.
function anchor(file, heading) {
  sub(/^.*\//, "", file)
  sub(/\.md$/, "", file)
  heading = tolower(heading)
  gsub(/[^a-z0-9_ -]/, "", heading)
  gsub(/ /, "-", heading)
  return file "-" heading
}

# A heading that stands before in its file gets a number, as on GitHub: a page of tables has a part for each processor.
function own_anchor(heading,    name) {
  name = anchor(FILENAME, heading)
  return anchors[name]++ ? name "-" (anchors[name] - 1) : name
}

# On the site, headers have pages and other files of the repository are copied to source/.
function on_site(target,    parts) {
  if (split(target, parts, "#") == 2) return "#" anchor(parts[1] ? parts[1] : FILENAME, parts[2])
  if (target ~ /\.(md|png)$/) return target
  sub(/^(\.\.\/)+/, "", target)
  if (!sub(/^include\/heed\/(.*\/)?/, "", target)) return "source/" target
  gsub(/_/, "__", target)
  sub(/\.h$/, "_8h_source.html", target)
  return target
}

# Doxygen shows backticks in the text of a link to a page as they are. A text may begin a line earlier.
function relinked(line,    done, link, text, target) {
  while (match(line, /(\[[^]]*)?\]\([^):]+\)/)) {
    link = substr(line, RSTART, RLENGTH)
    text = substr(link, 1, index(link, "]("))
    target = on_site(substr(link, length(text) + 2, RLENGTH - length(text) - 2))
    if (target ~ /^#|\.md$/) gsub(/`/, "", text)
    done = done substr(line, 1, RSTART - 1) text "(" target ")"
    line = substr(line, RSTART + RLENGTH)
  }
  return done line
}

# The topic of docs/groups.dox that lists a header; with none, a title that is an error of Doxygen's.
function topic(header,    line, words, name, found) {
  sub(/^.*\//, "", header)
  while (!found && (getline line < "docs/groups.dox") > 0) {
    if (split(line, words, " ") > 2 && words[2] == "@defgroup") name = words[3]
    found = index(line, " " header)
  }
  close("docs/groups.dox")
  return found ? name : name " " header " is missing in docs/groups.dox"
}

function in_topic(code) {
  return "/** @addtogroup " topic(FILENAME) "\n@{ */\n" code
}

FILENAME ~ /\.md$/ {
  if (/^```/) in_code = !in_code
  if (in_code) print
  else if (/^## / && FILENAME ~ /README\.md$/) {
    # The main page's sections would stand before the guides in the side bar.
    print "\\anchor " own_anchor(substr($0, 4))
    print substr($0, 2)
  } else if (/^##+ /) print $0 " {#" own_anchor(substr($0, index($0, " ") + 1)) "}"
  else print relinked($0)
  next
}

# An instantiation would get a page of its own.
/^extern template / { while (!/;/) getline; next }

/^namespace / && !/detail/ { print $0 " " in_topic(""); next }
/^\}  \/\/ namespace / && !/detail/ { print "/** @} */ " $0; next }
/^HEED_MODULE/ {
  sub(/HEED/, "TORCH")
  sub(/, .*\)/, ")")
  print "namespace heed { " in_topic($0) "/** @} */ }"
  next
}

# The word, not the class.
{ sub(/\/\/\/ Attention /, "/// %Attention ") }

# Indented lines keep their columns.
/^ *\/\/\/   / {
  if (!indented) print "///"
  sub(/\/\/\/ /, "///     ")
  indented = 1
  print
  next
}
{ indented = 0; print }
