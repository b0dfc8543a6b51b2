// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <heed/weights.h>
#include <sys/stat.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <ios>
#include <istream>
#include <new>
#include <sstream>
#include <stdexcept>
#include <streambuf>
#include <string>
#include <thread>
#include <utility>

#include "support/weight_files.h"

// Weights from streams: those of files, of pipes, of memory, and of buffers that fail.

namespace heed::test {
namespace {

using ::testing::ElementsAre;
using Streams = WeightFiles;

/// A buffer that hands out a few bytes at a time, and never goes back.
class ForwardOnly : public std::streambuf {
 public:
  explicit ForwardOnly(std::string bytes, size_t fails_at = std::string::npos)
      : bytes_(std::move(bytes)), fails_at_(fails_at) {}

 protected:
  int_type underflow() override {
    if (at_ >= fails_at_) throw std::runtime_error("the line is dead");
    if (at_ >= bytes_.size()) return traits_type::eof();
    const auto count = std::min<size_t>({7, bytes_.size() - at_, fails_at_ - at_});
    setg(bytes_.data() + at_, bytes_.data() + at_, bytes_.data() + at_ + count);
    at_ += count;
    return traits_type::to_int_type(*gptr());
  }

 private:
  std::string bytes_;
  size_t fails_at_, at_ = 0;
};

/// Memory that notes how much is asked of it at once.
class Noting : public std::stringbuf {
 public:
  using std::stringbuf::stringbuf;
  std::streamsize most = 0;

 protected:
  std::streamsize xsgetn(char* to, std::streamsize count) override {
    most = std::max(most, count);
    return std::stringbuf::xsgetn(to, count);
  }
};

class WithoutMemory : public std::streambuf {
 protected:
  int_type underflow() override { throw std::bad_alloc(); }
};

NamedTensors two_tensors() {
  // More than one of the parts in which a stream is kept.
  return {{"a.x", at::arange(5'000'000, at::kInt)}, {"a.y", at::arange(7.F)}};
}

std::string error_of(std::istream& stream, const LoadOptions& options = {}) {
  Box box({{"x", at::zeros({2})}});
  const auto error = value_error([&] { load_weights(box, stream, options); });
  EXPECT_TRUE(box["x"].equal(at::zeros({2})));
  const std::string start = "load_weights: ";
  EXPECT_EQ(error.substr(0, start.size()), start) << error;
  return error.substr(std::min(start.size(), error.size()));
}

std::string error_of(const std::string& bytes, const LoadOptions& options = {}) {
  std::istringstream stream(bytes);
  return error_of(stream, options);
}

void expect_loads(std::istream& stream) {
  Box box({{"x", at::zeros({5'000'000}, at::kInt)}, {"y", at::zeros({7})}});
  const auto report = load_weights(box, stream, LoadOptions().prefix("a."));
  EXPECT_THAT(report.loaded, ElementsAre("x", "y"));
  EXPECT_GT(report.bytes_read, 20'000'000U);
  EXPECT_TRUE(box["x"].equal(two_tensors().at("a.x")));
  EXPECT_TRUE(box["y"].equal(two_tensors().at("a.y")));
}

TEST_F(Streams, AreReadInEachFormat) {
  for (const auto format : {WeightFormat::safetensors, WeightFormat::torchscript}) {
    save_weights(two_tensors(), path_, SaveOptions().format(format));
    const auto bytes = read_bytes(path_);
    std::ifstream file(path_, std::ios::binary);
    expect_loads(file);
    std::istringstream memory(bytes);
    memory.exceptions(std::ios::failbit | std::ios::badbit | std::ios::eofbit);
    expect_loads(memory);
    ForwardOnly forward(bytes);
    std::istream stream(&forward);
    expect_loads(stream);
    ASSERT_EQ(::mkfifo((directory_ / "pipe").c_str(), 0600), 0);
    EXPECT_EQ(value_error([&] { read_weights(directory_ / "pipe"); }),
              "read_weights: path (" + (directory_ / "pipe").string() +
                  ") must name a file; it is a pipe, which load_weights reads as a std::ifstream");
    std::thread writer([&] { write(directory_ / "pipe", bytes); });
    std::ifstream pipe(directory_ / "pipe", std::ios::binary);
    expect_loads(pipe);
    writer.join();
    std::filesystem::remove(directory_ / "pipe");
    std::istringstream behind("before" + bytes);
    behind.ignore(6);
    const auto read = read_weights(behind);
    ASSERT_EQ(read.size(), 2U);
    for (const auto& [name, tensor] : two_tensors())
      EXPECT_TRUE(read.at(name).equal(tensor)) << name;
  }
  c10::Dict<std::string, at::Tensor> dict;
  dict.insert("x", at::ones({2}));
  const auto pickled = torch::jit::pickle_save(dict);
  std::istringstream python({pickled.begin(), pickled.end()});
  EXPECT_TRUE(read_weights(python).at("x").equal(at::ones({2})));
}

TEST_F(Streams, ThatCannotBeReadAreRefused) {
  std::istringstream empty;
  EXPECT_EQ(error_of(empty), "stream must not be at its end");
  std::istringstream done("a");
  std::string word;
  done >> word;
  EXPECT_EQ(error_of(done), "stream must not be at its end");
  const std::string failed =
      "stream must be readable; it has failed before, as that of a file that does not exist";
  std::ifstream absent(directory_ / "absent");
  EXPECT_EQ(error_of(absent), failed);
  std::istream none(nullptr);
  EXPECT_EQ(error_of(none), failed);
  ForwardOnly dead(std::string(100, 'x'), /*fails_at=*/50);
  std::istream dying(&dead);
  EXPECT_EQ(error_of(dying), "stream must be readable; it failed: the line is dead");
  ForwardOnly late("PK\3\4" + std::string(20'000'000, 'x'), /*fails_at=*/19'000'000);
  std::istream later(&late);
  EXPECT_EQ(value_error([&] { read_weights(later); }),
            "read_weights: stream must be readable; it failed: the line is dead");
}

/// A stream may have no end.
TEST_F(Streams, WithoutWeightsAreNotReadToTheirEnd) {
  const auto error_of_endless = [](const std::string& start) {
    ForwardOnly endless(start + std::string(20'000'000, ' '), /*fails_at=*/100'000);
    std::istream stream(&endless);
    return error_of(stream);
  };
  const std::string formats =
      "stream must be a safetensors file or its index, or what torch.save, torch.export.save or "
      "torch.jit.save wrote; ";
  EXPECT_EQ(error_of_endless("garbage"), formats + "its bytes begin with \"garbage \"");
  EXPECT_EQ(error_of_endless("<html>").find(formats + "it is an HTML page"), 0U);
  EXPECT_EQ(error_of_endless("{"),
            "stream must be of one file; it is the index of several: pass the index's path");
}

TEST_F(Streams, TakeLittleMemoryWhereTheyAreShort) {
  save_weights(NamedTensors{{"x", at::ones({2})}}, path_);
  Noting noting(read_bytes(path_));
  std::istream stream(&noting);
  EXPECT_EQ(read_weights(stream).size(), 1U);
  EXPECT_LE(noting.most, 1 << 16);
}

TEST_F(Streams, MayRunOutOfMemory) {
  WithoutMemory none;
  std::istream stream(&none);
  EXPECT_THROW(read_weights(stream), std::bad_alloc);
}

/// Errors call a stream by its name where they would name a path.
TEST_F(Streams, AreNamedInErrors) {
  save_weights(NamedTensors{{"x", at::ones({3})}}, path_);
  const auto bytes = read_bytes(path_);
  EXPECT_EQ(error_of(bytes),
            "stream must fit the module, 0 of whose 1 tensors do\n"
            "  misshapen: x (Float [2] in the module, Float [3] in the file)");
  EXPECT_EQ(error_of(bytes, LoadOptions().prefix("z.")),
            "prefix (z.) must begin a name in stream, which holds x");
  EXPECT_EQ(error_of(bytes, LoadOptions().key("k")),
            "key (k) must be empty: stream is a safetensors file; options.prefix selects names");
  EXPECT_EQ(error_of(bytes.substr(0, bytes.size() - 1)).find("stream must be a sound safetensors"),
            0U);
  EXPECT_EQ(error_of(R"({"weight_map": {"x": "model-00001-of-00002.safetensors"}})"),
            "stream must be of one file; it is the index of several: pass the index's path");
  EXPECT_EQ(error_of("neither"),
            "stream must be a safetensors file or its index, or what torch.save, torch.export.save "
            "or torch.jit.save wrote; its bytes begin with \"neither\"");
}

}  // namespace
}  // namespace heed::test
