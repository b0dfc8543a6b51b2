// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/weights.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "support/processes.h"
#include "support/weight_files.h"
#include "weights/formats/file_tensors.h"
#include "weights/formats/weight_file.h"

namespace heed::test {
namespace {

/// Files that another process changes while they are read.
class ChangingFiles : public WeightFiles {
 protected:
  at::Tensor open(const char* name = "x") const {
    return detail::read_weight_file(detail::Bytes(path_), "").tensors.at(name);
  }
};

constexpr WeightFormat kEitherFormat[] = {WeightFormat::safetensors, WeightFormat::torchscript};

TEST_F(ChangingFiles, ThatAreCutShortAreRefused) {
  const Box box({{"x", at::ones({3'000'000})}});
  for (const auto format : kEitherFormat) {
    save_weights(box, path_, SaveOptions().format(format));
    const auto x = open();
    const auto size = std::filesystem::file_size(path_);
    std::filesystem::resize_file(path_, size / 2);
    const auto reason = "path (" + path_ + ") must not be cut short while it is read; byte " +
                        std::to_string(size / 2) + " of " + std::to_string(size) + " is gone";
    EXPECT_EQ(value_error([&] { detail::with_values(x); }), reason);
    EXPECT_EQ(value_error([&] { detail::copy_values(x, box["x"]); }), reason);
    EXPECT_EQ(value_error([&] {
                detail::copy_values(x.view({2, -1}).t(), at::ones({1, 1}));
              }),
              reason);
  }
}

/// A mapped file would end the process by SIGBUS.
TEST_F(ChangingFiles, ThatAreCutShortAgainAndAgainAreReadOrRefused) {
  const Box saved({{"x", at::ones({1'000'000})}, {"y", at::ones({1'000'000})}});
  for (const auto format : kEitherFormat) {
    save_weights(saved, path_, SaveOptions().format(format));
    const auto child = [&] {
      at::set_num_threads(1);  // a forked process has no others
      const auto size = std::filesystem::file_size(path_);
      std::atomic<bool> done = false;
      std::thread other([&] {
        while (!done) {
          std::filesystem::resize_file(path_, size / 2);
          std::filesystem::resize_file(path_, size);
        }
      });
      Box box({{"x", at::zeros({1'000'000})}, {"y", at::zeros({1'000'000})}});
      for (int i = 0; i < 200; ++i) {
        try {
          load_weights(box, path_);
        } catch (const c10::ValueError&) {
        }
      }
      done = true;
      other.join();
    };
    EXPECT_EQ(signal_that_ends(child, [](pid_t /*process*/) {}), 0);
  }
}

TEST_F(ChangingFiles, ThatAreReplacedAreReadAsTheyWere) {
  save_weights(Box({{"x", at::ones({10})}}), path_);
  const auto x = open();
  save_weights(Box({{"x", at::zeros({10})}}), path_);
  EXPECT_TRUE(detail::with_values(x).equal(at::ones({10})));
  EXPECT_TRUE(detail::with_values(open()).equal(at::zeros({10})));
}

TEST_F(ChangingFiles, WhoseBoolsLoseTheirMeaningAreRefused) {
  const Box box({{"x", at::ones({10}, at::kBool)}});
  save_weights(box, path_);
  const auto x = open();
  std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-1, std::ios::end).put('\2').flush();
  EXPECT_EQ(value_error([&] { detail::copy_values(x, box["x"]); }),
            "path (" + path_ +
                ") must stay as it is while it is read; the bytes of a Bool tensor must be 0 or 1");
}

/// Parts of a tensor in a file, in any layout, and in pieces where it is large.
TEST_F(ChangingFiles, AreReadInPieces) {
  const auto whole = at::arange(3.F * 700'001).view({3, 700'001});
  save_weights(Box({{"x", whole}}), path_);
  const auto x = open();
  const auto expect = [](const at::Tensor& from, const at::Tensor& expected) {
    for (const auto dtype : {at::kFloat, at::kDouble}) {
      const auto to = at::zeros(expected.sizes(), dtype);
      detail::copy_values(from, to);
      EXPECT_TRUE(to.equal(expected.to(dtype)));
      const auto columns = at::zeros({expected.size(1), expected.size(0)}, dtype).t();
      detail::copy_values(from, columns);
      EXPECT_TRUE(columns.equal(expected.to(dtype)));
    }
  };
  expect(x, whole);
  expect(x.narrow(0, 1, 2), whole.narrow(0, 1, 2));
  expect(x.narrow(1, 5, 9), whole.narrow(1, 5, 9));
  expect(x.t(), whole.t());
  expect(x.narrow(0, 0, 0), whole.narrow(0, 0, 0));
}

}  // namespace
}  // namespace heed::test
