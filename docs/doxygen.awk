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

# On the site, headers have pages and other files of the repository are copied to source/.
function on_site(target,    parts) {
  if (split(target, parts, "#") == 2) return "#" anchor(parts[1] ? parts[1] : FILENAME, parts[2])
  if (target ~ /\.(md|png)$/) return target
  sub(/^(\.\.\/)+/, "", target)
  if (!sub(/^include\/heed\//, "", target)) return "source/" target
  gsub(/_/, "__", target)
  sub(/\.h$/, "_8h_source.html", target)
  return target
}

function relinked(line,    done) {
  while (match(line, /\]\([^):]+\)/)) {
    done = done substr(line, 1, RSTART + 1) on_site(substr(line, RSTART + 2, RLENGTH - 3)) ")"
    line = substr(line, RSTART + RLENGTH)
  }
  return done line
}

FILENAME ~ /\.md$/ {
  if (/^```/) in_code = !in_code
  if (in_code) print
  else if (/^##+ /) print $0 " {#" anchor(FILENAME, substr($0, index($0, " ") + 1)) "}"
  else print relinked($0)
  next
}

# An instantiation would get a page of its own.
/^extern template / { while (!/;/) getline; next }

# Indented lines keep their columns.
/^ *\/\/\/   / {
  if (!indented) print "///"
  sub(/\/\/\/ /, "///     ")
  indented = 1
  print
  next
}
{ indented = 0; print }
