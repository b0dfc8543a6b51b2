// SPDX-License-Identifier: BSD-3-Clause
#include "corpus.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <stdexcept>
#include <system_error>

#include "support/files.h"
#include "support/fingerprint.h"

namespace heed::examples {

namespace {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  auto file = open_input(path);
  std::string content{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) throw std::runtime_error("cannot read " + path.string());
  return content;
}

std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  auto read = folder;  // as far as we are
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    read = entry->path();
    std::error_code broken;  // a link to nothing or to itself is no file
    if (read.filename().string().front() == '.') {
      entry.disable_recursion_pending();
    } else if (entry->is_regular_file(broken)) {
      files.push_back(read);
    }
  }
  if (error) throw std::runtime_error("cannot read " + read.string() + ": " + error.message());
  std::sort(files.begin(), files.end());
  return files;
}

/// Where the last tenth of a text begins: before a character, not within it; at the end if there is
/// no character.
size_t last_tenth(const std::string& text) {
  auto cut = text.size() - text.size() / 10;
  const auto continues = [](char byte) { return (byte & 0xC0) == 0x80; };
  while (cut > 0 && cut < text.size() && continues(text[cut])) --cut;
  return cut > 0 ? cut : text.size();
}

Corpus read_files(const std::vector<fs::path>& files, const std::string& name) {
  Corpus corpus;
  for (const auto& file : files) {
    const auto content = read_file(file);
    if (content.find('\0') != std::string::npos) continue;
    const auto cut = last_tenth(content);
    corpus.training.push_back(content.substr(0, cut));
    corpus.held_out.push_back(content.substr(cut));
  }
  if (joined(corpus.training).empty()) throw std::runtime_error(name + " holds no text");
  return corpus;
}

at::Tensor encode(const std::vector<std::string>& texts, const Codec& codec) {
  const auto dtype = codec.size <= 256 ? at::kByte : at::kInt;
  std::vector<at::Tensor> tokens;
  for (const auto& text : texts) {
    if (!text.empty()) tokens.push_back(at::tensor(codec.encode(text)).to(dtype));
  }
  return tokens.empty() ? at::empty({0}, dtype) : at::cat(tokens);
}

}  // namespace

Corpus read_corpus(const std::string& path) {
  std::error_code error;
  const bool folder = fs::is_directory(path, error);
  return read_files(folder ? files_below(path) : std::vector<fs::path>{path}, path);
}

Corpus read_own_sources(const std::string& folder) {
  std::vector<fs::path> files;
  for (const auto* part : {"benchmarks", "cmake", "docs", "examples", "include", "scripts", "src",
                           "tests", "CMakeLists.txt", "README.md"}) {
    const auto path = fs::path(folder) / part;
    const auto more = fs::is_directory(path) ? files_below(path) : std::vector<fs::path>{path};
    files.insert(files.end(), more.begin(), more.end());
  }
  return read_files(files, folder);
}

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const auto& text : texts) all += text;
  return all;
}

TokenCorpus encode(const Corpus& corpus, const Codec& codec) {
  return {encode(corpus.training, codec), encode(corpus.held_out, codec),
          static_cast<int64_t>(corpus.training.size())};
}

uint64_t fingerprint(const TokenCorpus& corpus) {
  const auto bytes_of = [](const at::Tensor& tokens) {
    return std::string_view(static_cast<const char*>(tokens.const_data_ptr()), tokens.nbytes());
  };
  return fingerprint(bytes_of(corpus.held_out), fingerprint(bytes_of(corpus.training)));
}

}  // namespace heed::examples
