// SPDX-License-Identifier: BSD-3-Clause
#include "dates.h"

#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <ctime>

namespace heed::examples {

namespace {

constexpr int kFirstYear = 1950;
constexpr int kYears = 100;

constexpr std::array kMonths = {"January",   "February", "March",    "April",
                                "May",       "June",     "July",     "August",
                                "September", "October",  "November", "December"};
constexpr std::array kWeekdays = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                  "Thursday", "Friday", "Saturday"};
constexpr std::array kTens = {"",      "ten",   "twenty",  "thirty", "forty",
                              "fifty", "sixty", "seventy", "eighty", "ninety"};
constexpr std::array kNumbers = {"",        "one",     "two",       "three",    "four",
                                 "five",    "six",     "seven",     "eight",    "nine",
                                 "ten",     "eleven",  "twelve",    "thirteen", "fourteen",
                                 "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"};
constexpr std::array kOrdinals = {
    "",           "first",     "second",    "third",       "fourth",     "fifth",     "sixth",
    "seventh",    "eighth",    "ninth",     "tenth",       "eleventh",   "twelfth",   "thirteenth",
    "fourteenth", "fifteenth", "sixteenth", "seventeenth", "eighteenth", "nineteenth"};

constexpr std::array kStyles = {
    "{month} {day}, {year}",                   // March 3, 1998
    "{day} {mon} {yy}",                        // 3 Mar 98
    "{weekday}, the {nth} of {month} {year}",  // Tuesday, the 3rd of March 1998
    "{day} {month} {year}",                    // 3 March 1998
    "{month} {nth}, {year}",                   // March 3rd, 1998
    "{wkd} {day} {mon} {year}",                // Tue 3 Mar 1998
    "{weekday}, {month} {day}, {year}",        // Tuesday, March 3, 1998
    "the {nth} of {month}, '{yy}",             // the 3rd of March, '98
    "{mon}. {day}, {year}",                    // Mar. 3, 1998
    "{day}-{mon}-{yy}",                        // 3-Mar-98
    "{year}, {month} {day}",                   // 1998, March 3
    "the {ordinal} of {month} {year}",         // the third of March 1998
    "{month} the {ordinal}, {year}",           // March the third, 1998
    "{ordinal} {month} {year_words}",          // third March nineteen ninety-eight
};

/// As "3rd".
std::string with_suffix(int number) {
  const bool teen = number / 10 == 1;
  const int last = teen ? 0 : number % 10;
  return std::to_string(number) + (last == 1 ? "st" : last == 2 ? "nd" : last == 3 ? "rd" : "th");
}

/// As "ninety-eight", of a number from 1 to 99.
std::string number_words(int number) {
  if (number < 20) return kNumbers[number];
  const std::string tens = kTens[number / 10];
  return number % 10 == 0 ? tens : tens + '-' + kNumbers[number % 10];
}

/// As "twenty-third", of a number from 1 to 39.
std::string ordinal_words(int number) {
  if (number < 20) return kOrdinals[number];
  if (number % 10 == 0) return number == 20 ? "twentieth" : "thirtieth";
  return std::string(kTens[number / 10]) + '-' + kOrdinals[number % 10];
}

/// As "nineteen ninety-eight".
std::string year_words(int year) {
  if (year == 2000) return "two thousand";
  if (year > 2000 && year < 2010) return "two thousand and " + number_words(year % 100);
  return number_words(year / 100) + ' ' + number_words(year % 100);
}

/// A number below `limit`, the same with every standard library.
size_t draw(size_t limit, std::mt19937_64& random) { return random() % limit; }

/// As it is, or all letters small, or all large.
std::string in_any_case(std::string text, std::mt19937_64& random) {
  const auto chosen = draw(3, random);
  if (chosen == 0) return text;
  for (char& c : text) {
    const auto letter = static_cast<unsigned char>(c);
    c = static_cast<char>(chosen == 1 ? std::tolower(letter) : std::toupper(letter));
  }
  return text;
}

}  // namespace

std::string Date::iso() const { return fmt::format("{}-{:02}-{:02}", year, month, day); }

Calendar make_calendar() {
  constexpr int kFirstYearOfTm = 1900;
  Calendar calendar;
  std::tm day{};
  day.tm_year = kFirstYear - kFirstYearOfTm;
  day.tm_mday = 1;
  auto time = ::timegm(&day);
  for (int count = 0; day.tm_year + kFirstYearOfTm < kFirstYear + kYears; ++count) {
    const Date date{day.tm_year + kFirstYearOfTm, day.tm_mon + 1, day.tm_mday, day.tm_wday};
    (count % 10 == 9 ? calendar.held_out : calendar.training).push_back(date);
    time += 24 * 60 * 60;
    ::gmtime_r(&time, &day);
  }
  return calendar;
}

size_t date_styles() { return kStyles.size(); }

std::string in_words(const Date& date, size_t styles, std::mt19937_64& random) {
  const std::string month = kMonths[date.month - 1], weekday = kWeekdays[date.weekday];
  const auto style = kStyles[draw(std::min(styles, kStyles.size()), random)];
  auto text = fmt::format(
      fmt::runtime(style), fmt::arg("weekday", weekday), fmt::arg("wkd", weekday.substr(0, 3)),
      fmt::arg("month", month), fmt::arg("mon", month.substr(0, 3)), fmt::arg("day", date.day),
      fmt::arg("nth", with_suffix(date.day)), fmt::arg("ordinal", ordinal_words(date.day)),
      fmt::arg("year", date.year), fmt::arg("yy", fmt::format("{:02}", date.year % 100)),
      fmt::arg("year_words", year_words(date.year)));
  return in_any_case(std::move(text), random);
}

}  // namespace heed::examples
