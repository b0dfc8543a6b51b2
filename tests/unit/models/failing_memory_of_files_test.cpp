// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/weights.h>
#include <torch/nn/module.h>
#include <torch/utils.h>

#include <exception>
#include <string>
#include <vector>

#include "support/expect.h"
#include "support/failing_memory.h"
#include "support/inputs.h"
#include "support/pickles.h"
#include "support/seeds.h"
#include "support/weight_files.h"
#include "unit/models/all_or_nothing.h"

/// Loads of files, which change no module when they throw, where every allocation in turn fails.
namespace heed::test::of_failing_memory {
namespace {

/// A module with tensors of many kinds: of several dtypes, in an order of memory of their own, in
/// parts, and one under two names.
class LoadedModule : public torch::nn::Module {
 public:
  explicit LoadedModule(at::ScalarType dtype) : torch::nn::Module("Loaded") {
    const auto floating = at::zeros({2, 3}, dtype);
    register_parameter("w0", floating.clone());
    register_parameter("w1", register_parameter("w2", at::zeros({3, 2}, dtype).t()));
    register_buffer("flags", at::zeros({3}, at::kBool));
    register_buffer("count", at::zeros({}, at::kLong));
    register_parameter("whole", at::zeros({4, 3}, dtype));
    register_parameter("part", at::zeros({1, 3}, dtype));
  }

  Told values() const {
    Told told;
    for (const auto& item : named_parameters()) told.push_back(item.value().detach().clone());
    for (const auto& item : named_buffers()) told.push_back(item.value().clone());
    return told;
  }
};

/// Files of the weights of a LoadedModule, and what loads them.
class FailingMemoryOfFiles : public WeightFiles {
 protected:
  /// The file's own names and layouts are others.
  static NameMap names() {
    return NameMap()
        .transpose("x0", "w0")
        .pack({"upper", "lower"}, "whole")
        .split("rows", {"part"});
  }

  static NamedTensors tensors() {
    torch::manual_seed(moved(8));
    const auto shared = uniform({2, 3}, at::kFloat);
    return {{"x0", uniform({3, 2}, at::kFloat)},
            {"w1", shared},
            {"w2", shared.clone()},
            {"flags", at::arange(3).ne(1)},
            {"count", at::full({}, 7, at::kLong)},
            {"upper", uniform({1, 3}, at::kFloat)},
            {"lower", uniform({3, 3}, at::kFloat)},
            {"rows", uniform({1, 3}, at::kFloat)}};
  }

  /// Each allocation of the load fails in turn: the module holds what it held, or all of the file.
  void expect_all_or_nothing(const std::string& name, at::ScalarType dtype) const {
    const auto load = [&](LoadedModule& module) {
      load_weights(module, path_, LoadOptions().name_map(names()).dtype(dtype));
    };
    LoadedModule done(dtype);
    const auto before = done.values();
    load(done);
    const auto after = done.values();
    ASSERT_FALSE(are_equal(before, after)) << name;
    for (int64_t n = 0;; ++n) {
      LoadedModule module(dtype);
      const bool failed = runs_out_of_memory(n, [&] { load(module); });
      const auto values = module.values();
      ASSERT_TRUE(are_equal(values, after) || (failed && are_equal(values, before)))
          << name << " after " << n << " allocations";
      if (!failed) return;
    }
  }

  /// Each allocation of the load fails in turn, and is the error that follows.
  void expect_is_no_wrong_file(const std::string& name) const {
    for (int64_t n = 0;; ++n) {
      LoadedModule module(at::kFloat);
      const FailingAllocation failing(n);
      try {
        load_weights(module, path_, LoadOptions().name_map(names()));
      } catch (const c10::ValueError& error) {
        FAIL() << name << " after " << n << " allocations: " << error.what_without_backtrace();
      } catch (const std::exception&) {
        // The lack of memory, as LibTorch or the library of C++ says it.
      }
      if (!failing.has_failed()) return;
    }
  }

  void expect_all_or_nothing(const std::string& name) const {
    expect_all_or_nothing(name, at::kFloat);
    expect_all_or_nothing(name + ", converted", at::kDouble);
  }
};

TEST_F(FailingMemoryOfFiles, LeavesAModuleAsItWas) {
  const Box saved(tensors());
  save_weights(saved, path_);
  expect_all_or_nothing("safetensors");
  save_weights(saved, path_, SaveOptions().format(WeightFormat::torchscript));
  expect_all_or_nothing("TorchScript");
}

TEST_F(FailingMemoryOfFiles, IsNotTakenForAWrongFile) {
  const Box saved(tensors());
  save_weights(saved, path_);
  expect_is_no_wrong_file("safetensors");
  save_weights(saved, path_, SaveOptions().format(WeightFormat::torchscript));
  expect_is_no_wrong_file("TorchScript");
}

/// A state_dict as Python's torch.save writes it, with the numbers 0 to 5 in the place of others.
TEST_F(FailingMemoryOfFiles, LeavesAModuleAsItWasWhereTorchSaveWrote) {
  using namespace pickles;
  const auto entry = [](const std::string& name, const std::vector<int32_t>& sizes,
                        const std::string& from) {
    std::string shape, strides;
    int32_t stride = 1;
    for (size_t i = sizes.size(); i-- > 0;) {
      strides.insert(0, integer(stride));
      shape.insert(0, integer(sizes[i]));
      stride *= sizes[i];
    }
    return text(name) + tensor(shape, strides, 0, from);
  };
  const auto floats = storage("FloatStorage", 9);
  auto records = saved(pickle(
      dict(entry("x0", {3, 2}, floats) + entry("w1", {2, 3}, floats) + entry("w2", {2, 3}, floats) +
           entry("flags", {3}, storage("BoolStorage", 3, "1")) +
           entry("count", {}, storage("LongStorage", 1, "2")) + entry("upper", {1, 3}, floats) +
           entry("lower", {3, 3}, floats) + entry("rows", {1, 3}, floats))));
  records["data/0"] = numbers_to(9);
  records["data/1"] = std::string("\1\0\1", 3);
  records["data/2"] = bytes_of(int64_t{7});
  write(archive_of(records));
  expect_all_or_nothing("torch.save");
}

}  // namespace
}  // namespace heed::test::of_failing_memory
