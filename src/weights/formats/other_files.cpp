// SPDX-License-Identifier: BSD-3-Clause
#include "weights/formats/other_files.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <system_error>

namespace heed::detail {

namespace {

/// Whether a file begins like a page of HTML, whose tags may be in capital letters.
bool is_html(std::string_view file) {
  file.remove_prefix(std::min(file.find_first_not_of(" \t\r\n"), file.size()));
  std::string lower(file.substr(0, 14));
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return begins_with(lower, "<!doctype html") || begins_with(lower, "<html");
}

}  // namespace

std::optional<std::string> other_file(const Bytes& bytes) {
  constexpr size_t kStart = 256;
  const auto start = bytes.text(0, kStart);
  if (start.empty()) return "it is empty: write or download it again";
  if (begins_with(start, "version https://git-lfs.github.com/spec/")) {
    return "it is a pointer of Git LFS, which stands for the file: run git lfs pull in its folder";
  }
  if (is_html(start)) {
    return "it is an HTML page: download the file itself, whose address on huggingface.co has "
           "/resolve/ where that of its page has /blob/";
  }
  if (begins_with(start, "GGUF")) {
    return "it is a GGUF file, which llama.cpp reads: pass the model's safetensors, of which it "
           "was made";
  }
  return std::nullopt;
}

void refuse_format(const Bytes& bytes, std::string_view what) {
  HEED_CHECK(false,
             "{} must be a safetensors file or its index, or what torch.save, torch.export.save or "
             "torch.jit.save wrote; {}",
             bytes.source(), what);
}

std::optional<std::string> weights_in(const std::string& folder) {
  for (const auto* name : {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                           "pytorch_model.bin.index.json"}) {
    auto path = folder + "/" + name;
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored)) return path;
  }
  return std::nullopt;
}

}  // namespace heed::detail
