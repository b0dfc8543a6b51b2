# SPDX-License-Identifier: BSD-3-Clause
# What ctest printed, then its LastTest.log: a line for each skipped test, with the reason that it gave.
# A program says "skipped: REASON" or, by GTEST_SKIP, "FILE:LINE: Skipped" and then the reason; else it
# is the last that it printed. Python's unittest counts what it skips inside of a test that passes.

function close_output() {
  in_output = 0
  if (name in skipped) {
    print "  " name ": " (reason ? reason : last ? last : "it gave no reason")
  } else if (inside) {
    print "  " name ": " inside " of its cases, which it names with -v"
  }
}

NR == FNR {
  if ($0 ~ /\*\*\*Skipped/) {
    sub(/^.*Test +#[0-9]+: /, "")
    sub(/ +\.*\*\*\*Skipped.*$/, "")
    skipped[$0] = 1
  }
  next
}
/^[0-9]+\/[0-9]+ Test: / && !in_output { sub(/^[0-9]+\/[0-9]+ Test: /, ""); name = $0 }
/^Output:$/ && !in_output { in_output = 1; reason = last = inside = ""; next }
!in_output { next }
/^<end of output>$/ { close_output(); next }
/^-+$/ || /^$/ { next }
follows && !reason { reason = $0 }
{ follows = /: Skipped$/ }
/^skipped: / && !reason { reason = substr($0, 10) }
/^OK \(skipped=[0-9]+/ { inside = $0; gsub(/[^0-9]/, "", inside) }
{ last = $0 }
