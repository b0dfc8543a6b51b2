// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>

namespace heed::test {

/// Files of weights whose parts are drawn, repeated and nested by the grammars of their formats.
/// They have a tensor w0 [2, 3], and may be damaged.
/// @{
std::string random_pytorch_file(uint32_t seed);
std::string random_safetensors(uint32_t seed);
/// The index of a safetensors file that is cut into shards: one, named "shard".
std::string random_index(uint32_t seed);
/// A program of torch.export or AOTInductor, or a zip archive.
std::string random_archive(uint32_t seed);
/// @}

}  // namespace heed::test
