// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <heed/attention.h>
#include <heed/multi_head_attention.h>
#include <heed/weights.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/script.h>
#include <torch/serialize.h>
#include <torch/version.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "support/processes.h"
#include "support/weight_files.h"

namespace heed::test {
namespace {

using ::testing::ElementsAre;
using SaveWeights = WeightFiles;

constexpr WeightFormat kFormats[] = {WeightFormat::safetensors, WeightFormat::torchscript};

/// The dtypes that LibTorch has since 2.7.
std::vector<at::ScalarType> newer_dtypes() {
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 7
  return {at::kFloat8_e8m0fnu};
#else
  return {};
#endif
}

/// One of every kind of tensor, and of every dtype that both formats have.
NamedTensors many_tensors() {
  const auto bytes = at::randint(0, 2, {2, 3, 16}, at::kByte);
  NamedTensors tensors{{"scalar", at::full({}, 3.5)},
                       {"empty", at::zeros({0, 3})},
                       {"transposed", at::arange(6.).reshape({2, 3}).t()},
                       {"part", at::arange(10).slice(0, 3, 9, 2)},
                       {"expanded", at::ones({1, 2}).expand({3, 2})},
                       {"conjugate", at::complex(at::arange(2.F), at::ones({2})).conj()}};
  auto dtypes = newer_dtypes();
  dtypes.insert(dtypes.end(), {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong,
                               at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat,
                               at::kUInt16, at::kUInt32, at::kUInt64, at::kFloat8_e4m3fn,
                               at::kFloat8_e5m2, at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz});
  for (const auto dtype : dtypes) {
    const auto width = static_cast<int64_t>(c10::elementSize(dtype));
    tensors[c10::toString(dtype)] = bytes.slice(2, 0, width).contiguous().view(dtype).squeeze(2);
  }
  return tensors;
}

NamedTensors zeros_like_all(const NamedTensors& tensors) {
  NamedTensors zeros;
  for (const auto& [name, tensor] : tensors) zeros[name] = at::zeros_like(tensor);
  return zeros;
}

at::Tensor raw_bytes(const at::Tensor& tensor) {
  return tensor.resolve_conj().contiguous().flatten().view(at::kByte);
}

TEST_F(SaveWeights, AreReadBackBitForBit) {
  const Box saved(many_tensors());
  for (const auto format : kFormats) {
    save_weights(saved, path_, SaveOptions().format(format));
    Box box(zeros_like_all(many_tensors()));
    const auto report = load_weights(box, path_);
    EXPECT_EQ(report.loaded.size(), many_tensors().size());
    for (const auto& item : saved.named_buffers()) {
      EXPECT_TRUE(raw_bytes(box[item.key()]).equal(raw_bytes(item.value()))) << item.key();
    }
  }
}

/// Tensors that are in no module make the same file.
TEST_F(SaveWeights, TakeTensorsAlone) {
  const auto tensors = many_tensors();
  const Box saved(tensors);
  for (const auto format : kFormats) {
    save_weights(tensors, path_, SaveOptions().format(format));
    const auto read = read_weights(path_);
    ASSERT_EQ(read.size(), tensors.size());
    for (const auto& [name, tensor] : tensors) {
      EXPECT_TRUE(raw_bytes(read.at(name)).equal(raw_bytes(tensor))) << name;
    }
  }
  save_weights(saved, path_);
  const auto of_module = read_bytes(path_);
  save_weights(tensors, path_);
  EXPECT_EQ(read_bytes(path_), of_module);
  const std::map<std::string, at::Tensor> map = {{"a", at::ones({2}).requires_grad_()}};
  save_weights(map, path_, SaveOptions().name_map(NameMap().rename("theirs", "a")));
  EXPECT_TRUE(read_weights(path_).at("theirs").equal(map.at("a")));
  save_weights(NamedTensors(), path_);
  EXPECT_TRUE(read_weights(path_).empty());
}

TEST_F(SaveWeights, TakeTensorsWithValues) {
  write("before");
  const auto error = [&](const at::Tensor& tensor) {
    return value_error([&] { save_weights({{"a", at::ones({1})}, {"b", tensor}}, path_); });
  };
  EXPECT_EQ(error({}), "save_weights: b must be defined");
  EXPECT_EQ(error(at::ones({2}, at::kMeta)), "save_weights: b must not be on the meta device");
  EXPECT_EQ(error(at::ones({2}).to_sparse()), "save_weights: b must be a strided tensor");
  EXPECT_EQ(error(at::ones({2}, at::kComplexDouble)),
            "save_weights: b dtype (ComplexDouble) must be one that safetensors has");
  EXPECT_EQ(value_error([&] {
              save_weights({{"a", at::ones({1})}, {"a.b", at::ones({1})}}, path_,
                           SaveOptions().format(WeightFormat::torchscript));
            }),
            "save_weights: name \"a\" must be of one tensor or module in TorchScript; "
            "WeightFormat::safetensors may have more");
  EXPECT_EQ(read_bytes(path_), "before");
}

TEST_F(SaveWeights, ShareNoTensorThatWasTied) {
  const auto tensor = at::arange(4.);
  torch::nn::Module saved;
  saved.register_parameter("one", tensor);
  saved.register_parameter("two", tensor);
  for (const auto format : kFormats) {
    save_weights(saved, path_, SaveOptions().format(format));
    Box box({{"one", at::zeros({4}, at::kDouble)}, {"two", at::zeros({4}, at::kDouble)}});
    load_weights(box, path_, LoadOptions().dtype(at::kDouble));
    EXPECT_TRUE(box["one"].equal(tensor.to(at::kDouble)));
    EXPECT_TRUE(box["two"].equal(tensor.to(at::kDouble)));
  }
}

TEST_F(SaveWeights, InTorchScriptAreReadByTorchLoad) {
  Attention saved(4);
  Attention module(4);
  save_weights(*saved, path_, SaveOptions().format(WeightFormat::torchscript));
  torch::load(module, path_);
  EXPECT_TRUE(module->fc_q->weight.equal(saved->fc_q->weight));
}

TEST_F(SaveWeights, NeedAFileThatCanBeWritten) {
  Attention module(2);
  const auto refused = [&](const std::string& path) {
    return value_error([&] { save_weights(*module, path); });
  };
  EXPECT_EQ(refused(directory_),
            "save_weights: path (" + directory_.string() + ") must name a file");
  EXPECT_EQ(refused(""), "save_weights: path () must name a file");
  const auto nowhere = directory_ / "absent" / "file";
  EXPECT_EQ(refused(nowhere), "save_weights: path (" + nowhere.string() +
                                  ") must be writable; No such file or directory");
}

TEST_F(SaveWeights, NeedADtypeThatTheFormatHas) {
  const Box saved(
      {{"x", at::zeros({2}, at::kComplexDouble)}, {"half", at::zeros({2}, at::kComplexHalf)}});
  write("before");
  EXPECT_EQ(value_error([&] { save_weights(saved, path_); }),
            "save_weights: x dtype (ComplexDouble) must be one that safetensors has");
  EXPECT_EQ(read_bytes(path_), "before");
  save_weights(saved, path_, SaveOptions().format(WeightFormat::torchscript));
  Box box({{"x", at::ones({2}, at::kComplexDouble)}, {"half", at::ones({2}, at::kComplexHalf)}});
  load_weights(box, path_);
  EXPECT_TRUE(box["x"].equal(saved["x"]));
  EXPECT_TRUE(raw_bytes(box["half"]).equal(raw_bytes(saved["half"])));
}

/// Views whose conjugation or negation LibTorch has put off.
TEST_F(SaveWeights, ResolvesWhatWasPutOff) {
  const auto numbers = at::complex(at::arange(4.F), at::ones({4}));
  torch::nn::Module saved;
  auto inner = std::make_shared<torch::nn::Module>();
  saved.register_parameter("conjugate", numbers.conj());
  inner->register_buffer("negative", at::imag(numbers.conj()));
  saved.register_module("inner", inner);
  for (const auto format : kFormats) {
    save_weights(saved, path_, SaveOptions().format(format));
    Box box({{"conjugate", at::zeros({4}, at::kComplexFloat)}});
    const auto child = std::make_shared<Box>(NamedTensors{{"negative", at::zeros({4})}});
    box.register_module("inner", child);
    load_weights(box, path_);
    EXPECT_TRUE(box["conjugate"].equal(numbers.conj().resolve_conj()));
    EXPECT_TRUE((*child)["negative"].equal(at::full({4}, -1.F)));
  }
  auto loaded = std::make_shared<torch::nn::Module>();
  loaded->register_parameter("conjugate", at::zeros({4}, at::kComplexFloat));
  auto child_of_loaded = std::make_shared<torch::nn::Module>();
  child_of_loaded->register_buffer("negative", at::zeros({4}));
  loaded->register_module("inner", child_of_loaded);
  torch::load(loaded, path_);
  EXPECT_TRUE(child_of_loaded->named_buffers()["negative"].equal(at::full({4}, -1.F)));
}

/// A name that a file in TorchScript cannot hold is refused. LibTorch and heed read all others.
TEST_F(SaveWeights, HoldAnyNameOrRefuseIt) {
  std::vector<std::string> names = {"a b",
                                    "a/b",
                                    "\xc3\xa9",
                                    "1",
                                    "__parameters__",
                                    "__buffers__",
                                    "__annotations__",
                                    "__constants__",
                                    "for",
                                    "in",
                                    "None",
                                    "lambda",
                                    "yield",
                                    "training",
                                    "forward",
                                    "Tensor",
                                    "self",
                                    "\\u0061",
                                    "a\"b",
                                    "a\", ]\n",
                                    "__metadata__",
                                    "CONSTANTS"};
  for (int code = 0; code < 256; ++code) {
    if (code != '.') names.push_back(std::string("a") + static_cast<char>(code) + "b");
  }
  int refused = 0;
  for (const auto& name : names) {
    const Box saved({{name, at::arange(3.F)}, {"other", at::ones({2})}});
    for (const auto format : kFormats) {
      std::string error;
      try {
        save_weights(saved, path_, SaveOptions().format(format));
      } catch (const c10::ValueError& refusal) {
        error = refusal.what_without_backtrace();
      }
      const bool is_script = format == WeightFormat::torchscript;
      if (is_script && error.empty()) {
        EXPECT_EQ(torch::jit::load(path_).attr(name).toTensor().numel(), 3) << name;
      }
      refused += is_script && !error.empty() ? 1 : 0;
      if (!error.empty()) continue;
      Box box({{name, at::zeros({3})}, {"other", at::zeros({2})}});
      EXPECT_EQ(load_weights(box, path_).loaded.size(), 2U) << name;
      EXPECT_TRUE(box[name].equal(saved[name])) << name;
    }
  }
  EXPECT_EQ(refused, 13);
}

TEST_F(SaveWeights, NeedNamesAndDtypesThatTorchScriptHas) {
  const auto error = [&](const NamedTensors& tensors) {
    const Box saved(tensors);
    return value_error(
        [&] { save_weights(saved, path_, SaveOptions().format(WeightFormat::torchscript)); });
  };
  const std::string reason =
      " must be one that TorchScript's code can declare, not empty, without quotes, "
      "backslashes and line feeds and none of its keywords; WeightFormat::safetensors has any name";
  EXPECT_EQ(error({{"a\"b", at::ones({1})}}), "save_weights: name \"a\\x22b\"" + reason);
  torch::nn::Module bits;
  bits.register_buffer("x", at::empty({1}, at::kBits8));
  const auto script = SaveOptions().format(WeightFormat::torchscript);
  EXPECT_EQ(value_error([&] { save_weights(bits, path_, script); }),
            "save_weights: x dtype (Bits8) must be one that heed reads from TorchScript");
  Box parent({{"a", at::ones({1})}});
  parent.register_module("a\nb", std::make_shared<Box>(NamedTensors{}));
  EXPECT_EQ(value_error([&] { save_weights(parent, path_, script); }),
            "save_weights: name \"a\\x0ab\"" + reason);
  for (const auto* name : {"", ".a", "b.", "b..a"}) {
    const Box named({{"a", at::ones({1})}});
    EXPECT_EQ(value_error([&] {
                save_weights(named, path_,
                             SaveOptions(script).name_map(NameMap().rename(name, "a")));
              }),
              "save_weights: name \"\"" + reason)
        << name;
  }
  Box twice({{"a", at::ones({1})}, {"b", at::ones({1})}});
  EXPECT_EQ(value_error([&] {
              save_weights(twice, path_,
                           SaveOptions(script).name_map(NameMap().rename("a.c", "b")));
            }),
            "save_weights: name \"a\" must be of one tensor or module in TorchScript; "
            "WeightFormat::safetensors may have more");
}

TEST_F(SaveWeights, KeepALinkAndTheFileItLeadsTo) {
  Attention module(2);
  write(directory_ / "real", "");
  std::filesystem::create_symlink("real", path_);
  save_weights(*module, path_);
  EXPECT_TRUE(std::filesystem::is_symlink(path_));
  EXPECT_GT(std::filesystem::file_size(directory_ / "real"), 0);
}

std::vector<std::string> files_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    names.push_back(file.path().filename().string());
  }
  return names;
}

/// Calls `write` while a file may have `size` bytes at most: a write beyond fails, or the signal
/// SIGXFSZ ends the process.
template <typename Write>
void with_file_limit(rlim_t size, Write&& write) {
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit limited{size, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &limited);
  write();
  ::setrlimit(RLIMIT_FSIZE, &before);
}

TEST_F(SaveWeights, LeaveTheOldFileWhenThereIsNoRoom) {
  Attention module(64);
  write("before");
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  for (const auto format : kFormats) {
    for (const rlim_t size : {0, 100, 40'000}) {
      std::string error;
      with_file_limit(size, [&] {
        error = value_error([&] { save_weights(*module, path_, SaveOptions().format(format)); });
      });
      EXPECT_EQ(error, "save_weights: path (" + path_ + ") must be writable; File too large");
      EXPECT_EQ(read_bytes(path_), "before");
      EXPECT_THAT(files_in(directory_), ElementsAre("weights"));
    }
  }
  std::signal(SIGXFSZ, handler);
}

TEST_F(SaveWeights, LeaveTheOldFileWhenTheProcessIsKilledWhileItWrites) {
  Attention module(64);
  write("before");
  for (const auto format : kFormats) {
    for (const rlim_t size : {0, 100, 40'000}) {
      const auto signal = signal_that_ends(
          [&] {
            with_file_limit(size,
                            [&] { save_weights(*module, path_, SaveOptions().format(format)); });
          },
          [](pid_t /*process*/) {});
      EXPECT_EQ(signal, SIGXFSZ);
      EXPECT_EQ(read_bytes(path_), "before");
    }
  }
}

TEST_F(SaveWeights, LeaveAWholeFileWheneverTheProcessIsKilled) {
  constexpr int64_t kCount = 100'000;
  const auto box_of = [](double value) { return Box({{"x", at::full({kCount}, value)}}); };
  const Box one = box_of(1);
  const Box two = box_of(2);
  std::minstd_rand random(13);
  for (const auto format : kFormats) {
    const auto options = SaveOptions().format(format);
    save_weights(one, path_, options);
    for (int trial = 0; trial < 20; ++trial) {
      const auto signal = signal_that_ends(
          [&] {
            while (true) {
              save_weights(two, path_, options);
              save_weights(one, path_, options);
            }
          },
          [&](pid_t process) {
            ::usleep(static_cast<useconds_t>(random() % 20'000));
            ::kill(process, SIGKILL);
          });
      EXPECT_EQ(signal, SIGKILL);
      Box found = box_of(0);
      load_weights(found, path_);
      EXPECT_TRUE(found["x"].equal(one["x"]) || found["x"].equal(two["x"])) << trial;
    }
  }
}

mode_t mode_of(const std::string& path) {
  struct stat found {};
  EXPECT_EQ(::stat(path.c_str(), &found), 0);
  return found.st_mode & 07777;
}

TEST_F(SaveWeights, KeepTheModeOfWhatWasThere) {
  const Box box({{"x", at::ones({2})}});
  const auto mask = ::umask(022);
  save_weights(box, path_);
  EXPECT_EQ(mode_of(path_), 0644U);
  ::chmod(path_.c_str(), 0600);
  save_weights(box, path_);
  EXPECT_EQ(mode_of(path_), 0600U);
  ::umask(mask);
}

TEST_F(SaveWeights, FollowLinksAndReplaceFilesAlone) {
  const Box box({{"x", at::ones({2})}});
  const auto link = (directory_ / "link").string(), target = (directory_ / "target").string();
  std::filesystem::create_symlink("target", link);  // to nothing yet
  save_weights(box, link);
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_TRUE(std::filesystem::is_regular_file(target));
  const auto long_name = (directory_ / std::string(250, 'n')).string();
  save_weights(box, long_name);
  EXPECT_TRUE(std::filesystem::is_regular_file(long_name));

  const auto refused = [&](const std::string& path) {
    return value_error([&] { save_weights(box, path); });
  };
  const auto loop = (directory_ / "loop").string(), pipe = (directory_ / "pipe").string();
  std::filesystem::create_symlink("loop", loop);
  EXPECT_EQ(refused(loop),
            "save_weights: path (" + loop + ") must not be a link that leads to itself");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(refused(pipe), "save_weights: path (" + pipe +
                               ") must name a file: a device, a pipe or a socket would be "
                               "replaced");
  EXPECT_EQ(refused("/dev/null"),
            "save_weights: path (/dev/null) must name a file: a device, a pipe or a socket would "
            "be replaced");
  EXPECT_EQ(refused(path_ + std::string("\0elsewhere", 10)),
            "save_weights: path (" + path_ + ") must not hold a NUL");
  EXPECT_FALSE(std::filesystem::exists(path_));
  Box loaded({});
  EXPECT_EQ(value_error([&] { load_weights(loaded, target + std::string("\0", 1)); }),
            "load_weights: path (" + target + ") must not hold a NUL");
}

/// A file of another program's has no slopes, and one of LibTorch's own writer may have them.
TEST_F(SaveWeights, LeaveOutWhatTheOptionsSay) {
  const auto options = MultiHeadAttentionOptions(8, 2).alibi(true);
  MultiHeadAttention module(options), loaded(options);
  for (const auto format : kFormats) {
    save_weights(*module, path_, SaveOptions().format(format));
    const auto report = load_weights(*loaded, path_);
    EXPECT_EQ(report.loaded, module->named_parameters().keys());
    EXPECT_TRUE(loaded->fc_q->weight.equal(module->fc_q->weight));
    EXPECT_TRUE(loaded->alibi_slopes.equal(module->alibi_slopes));
  }
  torch::nn::Sequential inside(module);
  save_weights(*inside, path_);
  Box others({});
  EXPECT_EQ(load_weights(others, path_, LoadOptions().strict(false)).unexpected.size(), 8U);
}

/// Under another program's names, in both formats, and back.
TEST_F(SaveWeights, WritesTheNamesOfAnotherProgram) {
  MultiHeadAttention module(8, 2);
  module->register_buffer("steps", at::full({}, 3, at::kLong));
  for (const auto format : kFormats) {
    save_weights(*module, path_, SaveOptions().format(format).name_map(name_maps::in_proj()));
    const auto tensors = read_weights(path_);
    std::vector<std::string> names;
    for (const auto& item : tensors) names.push_back(item.first);
    EXPECT_THAT(names, ElementsAre("in_proj_bias", "in_proj_weight", "out_proj.bias",
                                   "out_proj.weight", "steps"));
    MultiHeadAttention other(8, 2);
    other->register_buffer("steps", at::full({}, 0, at::kLong));
    load_weights(*other, path_, LoadOptions().name_map(name_maps::in_proj()));
    for (const auto& item : module->named_parameters()) {
      EXPECT_TRUE(other->named_parameters()[item.key()].equal(item.value())) << item.key();
    }
    EXPECT_EQ(other->named_buffers()["steps"].item<int64_t>(), 3);
  }
  EXPECT_EQ(
      value_error([&] {
        save_weights(*module, path_, SaveOptions().name_map(NameMap().pack({"q", "k"}, "fc_q")));
      }),
      "save_weights: name map: q, k -> fc_q: it cannot be turned around: how many rows of "
      "fc_q.weight are whose is not known");
}

}  // namespace
}  // namespace heed::test
