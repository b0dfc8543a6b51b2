// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <random>
#include <string>
#include <vector>

namespace heed::examples {

/// A day from 1950 to 2049: in this range, two digits of a year tell the whole year.
struct Date {
  int year;
  int month;    ///< 1 to 12
  int day;      ///< 1 to 31
  int weekday;  ///< 0 Sunday to 6 Saturday

  /// As "1998-03-03".
  std::string iso() const;
};

/// The days that a model may learn from, and those that it must never see.
struct Calendar {
  std::vector<Date> training, held_out;
};

/// Every tenth day is held out.
Calendar make_calendar();

/// The number of ways to write a date.
size_t date_styles();

/// The date as people write it, such as "Tuesday, the 3rd of March 1998" or "3 mar 98", in one of
/// the first `styles` ways; sometimes all in lower case or all in upper case.
std::string in_words(const Date& date, size_t styles, std::mt19937_64& random);

}  // namespace heed::examples
