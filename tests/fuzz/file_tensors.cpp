// SPDX-License-Identifier: BSD-3-Clause
#include "file_tensors.h"

#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <string_view>

#include "attend_call.h"
#include "support/inputs.h"

namespace heed::fuzz {

namespace {

using DrawnNames = std::vector<std::string>;

using std::string_view_literals::operator""sv;

/// Names are put together from these: all that a format's grammar, an escape or a message's pattern
/// could trip over. The last ones are not UTF-8.
constexpr std::string_view kWords[] = {"a"sv,
                                       "b"sv,
                                       "ab"sv,
                                       "weight"sv,
                                       "0"sv,
                                       "-1"sv,
                                       "_"sv,
                                       "A"sv,
                                       " "sv,
                                       "\""sv,
                                       "'"sv,
                                       "\\"sv,
                                       "\n"sv,
                                       "\r"sv,
                                       "\t"sv,
                                       "\0"sv,
                                       "\x1b"sv,
                                       "\x7f"sv,
                                       "/"sv,
                                       "../"sv,
                                       "{}"sv,
                                       "{"sv,
                                       "}"sv,
                                       ":"sv,
                                       ","sv,
                                       "%s"sv,
                                       "\\u0061"sv,
                                       "\\n"sv,
                                       "#"sv,
                                       "$"sv,
                                       "None"sv,
                                       "for"sv,
                                       "self"sv,
                                       "lambda"sv,
                                       "__metadata__"sv,
                                       "__class__"sv,
                                       "__dict__"sv,
                                       "__init__"sv,
                                       "__torch__"sv,
                                       "training"sv,
                                       "forward"sv,
                                       "version"sv,
                                       "CONSTANTS"sv,
                                       "data"sv,
                                       "_extra_state"sv,
                                       "num_batches_tracked"sv,
                                       "\xc3\xa9"sv,
                                       "\xe6\x97\xa5"sv,
                                       "\xf0\x9f\x98\x80"sv,
                                       "\xc2\x80"sv,
                                       "\xef\xbb\xbf"sv,
                                       "\xe2\x80\xa8"sv,
                                       "\xff"sv,
                                       "\xc3"sv,
                                       "\xc0\x80"sv,
                                       "\xed\xa0\x80"sv,
                                       "\xf4\x90\x80\x80"sv,
                                       "\x80"sv};

std::string draw_word() {
  return std::string(kWords[draw_below(static_cast<int64_t>(std::size(kWords)))]);
}

/// A name without a dot, as modules of LibTorch want it.
std::string draw_part() {
  if (draw_below(60) == 0) return std::string(static_cast<size_t>(draw_below(70'000)) + 1, 'n');
  std::string part;
  for (auto words = draw_below(3); words >= 0; --words) part += draw_word();
  part.erase(std::remove(part.begin(), part.end(), '.'), part.end());
  return part.empty() ? "c" : part;
}

/// A dotted name, which may begin as one of the others does.
std::string draw_name(const DrawnNames& others) {
  auto name = draw_part();
  if (!others.empty() && draw_below(3) == 0) {
    name = others[static_cast<size_t>(draw_below(static_cast<int64_t>(others.size())))];
    if (draw_below(2) == 0) return name + draw_part();
  }
  for (auto parts = draw_below(3); parts > 0; --parts) name += "." + draw_part();
  return name;
}

/// A name with a dot anywhere, or an empty one: only a map gives a tensor such a name.
std::string draw_mapped_name(const DrawnNames& others) {
  if (draw_below(8) == 0) return "";
  auto name = draw_name(others);
  if (draw_below(6) == 0)
    name.insert(static_cast<size_t>(draw_below(static_cast<int64_t>(name.size()) + 1)), ".");
  return name;
}

at::Tensor draw_value(const Case& c) {
  const Shape shapes[] = {{}, {0}, {3}, {2, 3}};
  const auto values = test::uniform(shapes[draw_below(4)], at::kDouble);
  const at::ScalarType dtypes[] = {dtype_of(c.dtype % 4), at::kFloat, at::kLong, at::kBool,
                                   at::kByte};
  return (values * 4).abs().to(dtypes[draw_below(5)]);
}

/// The smallest code point that so many bytes are for, and the bits of the first of them.
struct Utf8Length {
  unsigned least, first, mask;
};
constexpr Utf8Length kUtf8[] = {
    {0, 0, 0x80}, {0x80, 0xc0, 0xe0}, {0x800, 0xe0, 0xf0}, {0x10000, 0xf0, 0xf8}};

bool is_utf8(const std::string& text) {
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i]);
    const auto* const length = std::find_if(
        std::begin(kUtf8), std::end(kUtf8),
        [&](const Utf8Length& candidate) { return (first & candidate.mask) == candidate.first; });
    if (length == std::end(kUtf8)) return false;
    unsigned code = first & ~length->mask;
    const auto end = i + static_cast<size_t>(length - kUtf8) + 1;
    if (end > text.size()) return false;
    for (++i; i < end; ++i) {
      const auto next = static_cast<unsigned char>(text[i]);
      if ((next & 0xc0U) != 0x80U) return false;
      code = code << 6U | (next & 0x3fU);
    }
    const bool surrogate = code >= 0xd800 && code <= 0xdfff;
    if (code < length->least || code > 0x10ffff || surrogate) return false;
  }
  return true;
}

/// A word that no grammar has a meaning for.
bool is_plain(const std::string& part) {
  const bool plain = std::all_of(part.begin(), part.end(), [](unsigned char letter) {
    return std::isalnum(letter) != 0 && letter < 0x80;
  });
  return plain && !part.empty() && std::isalpha(static_cast<unsigned char>(part[0])) != 0 &&
         part != "None" && part != "for" && part != "lambda";
}

DrawnNames parts_of_name(const std::string& name) {
  DrawnNames parts = {""};
  for (const char letter : name) {
    if (letter == '.') {
      parts.emplace_back();
    } else {
      parts.back().push_back(letter);
    }
  }
  return parts;
}

/// Whether one name is that of a module in another, so that two attributes would have it.
bool is_tensor_and_module(const FileTensors& tensors) {
  for (const auto& one : tensors.tensors) {
    for (const auto& other : tensors.tensors) {
      if (other.name.rfind(one.name + ".", 0) == 0) return true;
    }
  }
  return false;
}

}  // namespace

std::shared_ptr<torch::nn::Module> FileTensors::module(bool zeros) const {
  auto root = std::make_shared<torch::nn::Module>("Root");
  for (const auto& tensor : tensors) {
    auto parent = root;
    auto parts = parts_of_name(tensor.name);
    const auto own = parts.back();
    parts.pop_back();
    for (const auto& part : parts) {
      const auto children = parent->named_children();
      parent = children.contains(part)
                   ? children[part]
                   : parent->register_module(part, std::make_shared<torch::nn::Module>("Inner"));
    }
    const auto value = zeros ? at::zeros_like(tensor.value) : tensor.value.clone();
    if (tensor.is_parameter) {
      parent->register_parameter(own, value, /*requires_grad=*/value.is_floating_point());
    } else {
      parent->register_buffer(own, value);
    }
  }
  return root;
}

NamedTensors FileTensors::in_file() const {
  NamedTensors result;
  for (const auto& tensor : tensors) result[tensor.in_file] = tensor.value;
  return result;
}

FileTensors draw_file_tensors(const Case& c) {
  const auto dtype = dtype_of(c.dtype % 4);
  FileTensors result;
  if (c.names == 0) {
    result.tensors = {{"x", "x", test::uniform({c.L % 9, 3}, dtype)},
                      {"y", "y", test::uniform({}, dtype)}};
    return result;
  }
  const bool maps = c.mapped != 0;
  DrawnNames names;
  for (int64_t i = 0; i < c.names; ++i) {
    const auto name = maps ? draw_mapped_name(names) : draw_name(names);
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    names.push_back(name);
    const auto own = maps ? "t" + std::to_string(i) : name;
    const auto value = draw_value(c);
    result.tensors.push_back({own, name, value, value.is_floating_point() && draw_below(2) == 0});
    if (maps) result.map.rename(name, own);
  }
  return result;
}

std::optional<bool> fits_format(const Case& c, const FileTensors& tensors) {
  const auto& all = tensors.tensors;
  if (c.names != 0 && c.mapped != 0) return std::nullopt;
  if (c.weights == 0) {
    return std::all_of(all.begin(), all.end(), [](const FileTensor& tensor) {
      return is_utf8(tensor.in_file) && tensor.in_file != "__metadata__";
    });
  }
  if (is_tensor_and_module(tensors)) return false;
  const bool plain = std::all_of(all.begin(), all.end(), [](const FileTensor& tensor) {
    const auto parts = parts_of_name(tensor.name);
    return std::all_of(parts.begin(), parts.end(), is_plain);
  });
  return plain ? std::optional(true) : std::nullopt;
}

}  // namespace heed::fuzz
