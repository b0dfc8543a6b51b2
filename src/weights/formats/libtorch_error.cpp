// SPDX-License-Identifier: BSD-3-Clause
#include "weights/formats/libtorch_error.h"

#include <algorithm>

namespace heed::detail {

std::string first_sentence(std::string text) {
  // LibTorch 2.6 begins with "[enforce fail at inline_container.cc:209] . ".
  const std::string place_end = "] . ";
  const auto place = text.find(place_end);
  if (text.rfind("[enforce", 0) == 0 && place != std::string::npos) {
    text.erase(0, place + place_end.size());
  }
  return text.substr(0, std::min({text.find('\n'), text.find(". "), text.find(".\n")}));
}

}  // namespace heed::detail
