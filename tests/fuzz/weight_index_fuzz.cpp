// SPDX-License-Identifier: BSD-3-Clause
#include "weights/formats/weight_index.h"

#include <string>

#include "fuzz.h"
#include "weights/formats/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                    R"("b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})";
  static const std::string shard =
      std::string(1, static_cast<char>(header.size())) + std::string(7, '\0') + header + "12";
  const auto index = heed::fuzz::bytes_of(data, size);
  return heed::fuzz::expect_read_or_refused([&] {
    heed::detail::read_weight_index(index, [](const std::string& /*name*/) {
      return heed::detail::read_safetensors(heed::fuzz::bytes_of(shard.data(), shard.size()));
    });
  });
}
