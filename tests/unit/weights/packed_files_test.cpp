// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <heed/decoder.h>
#include <heed/multi_head_attention.h>
#include <heed/pack_weights.h>
#include <heed/weights.h>

#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <string>
#include <utility>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"
#include "support/transformers.h"

// Files of weights that pack_weights has packed.

namespace heed::test::of_packed_files {
namespace {

constexpr int64_t B = 2, L = 5;

constexpr PackFormat kFormats[] = {PackFormat::float32, PackFormat::bfloat16, PackFormat::float16,
                                   PackFormat::int8, PackFormat::int4};

std::string path_of(const std::string& name) {
  return testing::TempDir() + name + ".packed.safetensors";
}

MultiHeadAttention make_attention(int64_t width, at::ScalarType dtype = at::kFloat) {
  MultiHeadAttention attention(width, /*head_nums=*/3);
  attention->to(dtype);
  attention->eval();
  return attention;
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(PackedFiles, HoldEachFormat) {
  torch::manual_seed(moved(501));
  const at::NoGradGuard no_grad;
  const auto path = path_of("formats");
  for (const int64_t width : {33, 96}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const auto format : kFormats) {
        if (format == PackFormat::int4 && width % 32 != 0) continue;
        SCOPED_TRACE(c10::str(width, " ", dtype, " ", static_cast<int>(format)));
        auto saved = make_attention(width, dtype), loaded = make_attention(width, dtype);
        pack_weights(*saved, format);
        save_weights(*saved, path);
        const auto report = load_weights(*loaded, path);
        EXPECT_EQ(report.loaded.size(), 8U);
        EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
        EXPECT_FALSE(loaded->fc_q->weight.has_storage());
        EXPECT_FALSE(loaded->fc_q->bias.requires_grad());
        const auto x = uniform({B, L, width}, dtype);
        EXPECT_TRUE(are_equal({loaded->forward(x)}, {saved->forward(x)}));
        // Saving what was loaded writes the file that was read.
        const auto bytes = bytes_of(path);
        save_weights(*loaded, path);
        EXPECT_EQ(bytes_of(path), bytes);
      }
    }
  }
}

TEST(PackedFiles, HoldZeroPointsAndGroups) {
  torch::manual_seed(moved(502));
  const at::NoGradGuard no_grad;
  const auto path = path_of("groups");
  auto saved = make_attention(384), loaded = make_attention(384);
  pack_weights(*saved, PackOptions(PackFormat::int4).group_size(128).zero_point(true));
  save_weights(*saved, path);
  // A packed module takes another's weights.
  pack_weights(*loaded, PackFormat::int8);
  load_weights(*loaded, path);
  const auto x = uniform({B, L, 384}, at::kFloat);
  EXPECT_TRUE(are_equal({loaded->forward(x)}, {saved->forward(x)}));
}

TEST(PackedFiles, SayWhetherActivationsAreQuantized) {
  torch::manual_seed(moved(509));
  const at::NoGradGuard no_grad;
  const auto path = path_of("quantizing");
  for (const auto format : {PackFormat::int8, PackFormat::int4}) {
    auto saved = make_attention(96), loaded = make_attention(96);
    pack_weights(*saved, PackOptions(format).quantize_activations(true));
    save_weights(*saved, path);
    load_weights(*loaded, path);
    const auto x = uniform({B, L, 96}, at::kFloat);
    EXPECT_TRUE(are_equal({loaded->forward(x)}, {saved->forward(x)}));
    const auto bytes = bytes_of(path);
    EXPECT_NE(bytes.find("quantize_activations"), std::string::npos);
    save_weights(*loaded, path);
    EXPECT_EQ(bytes_of(path), bytes);
  }
}

TEST(PackedFiles, AreReadFromStreamsWithPrefixesAndInOtherDtypes) {
  torch::manual_seed(moved(503));
  const at::NoGradGuard no_grad;
  const auto path = path_of("model");
  auto block = llama_options(64, 4, 2);
  Decoder model(DecoderOptions(/*vocab_size=*/70, block, /*num_layers=*/1).tied_head(true));
  model->eval();
  pack_weights(*model, PackFormat::int8);
  save_weights(*model, path);
  const auto first = [](const Decoder& of) {
    return of->stack->blocks->ptr<TransformerBlockImpl>(0);
  };
  TransformerBlock one(first(model)->options);
  std::istringstream stream(bytes_of(path));
  const auto report =
      load_weights(*one, stream, LoadOptions().prefix("stack.blocks.0.").strict(false));
  EXPECT_TRUE(report.missing.empty());
  one->eval();
  const auto x = uniform({B, L, 64}, at::kFloat);
  EXPECT_TRUE(are_equal({one->forward(x)}, {first(model)->forward(x)}));
  Decoder half(DecoderOptions(70, block, 1).tied_head(true));
  half->to(at::kHalf);
  half->eval();
  load_weights(*half, path, LoadOptions().dtype(at::kHalf));
  EXPECT_EQ(half->token_embedding->weight.scalar_type(), at::kHalf);
  EXPECT_TRUE(are_alike({first(half)->forward(x.to(at::kHalf))}, {one->forward(x)}, 1e-2));
}

TEST(PackedFiles, ShowTheirTensors) {
  const auto path = path_of("tensors");
  auto attention = make_attention(96);
  pack_weights(*attention, PackFormat::int4);
  save_weights(*attention, path);
  const auto tensors = read_weights(path);
  EXPECT_EQ(tensors.at("fc_q.weight.values").sizes(), at::IntArrayRef({2, 48, 64}));
  EXPECT_EQ(tensors.at("fc_q.weight.scales").sizes(), at::IntArrayRef({2, 3, 64}));
  EXPECT_EQ(tensors.at("fc_q.bias").sizes(), at::IntArrayRef({96}));
  EXPECT_EQ(tensors.size(), 12U);
  auto shifted = make_attention(96);
  pack_weights(*shifted, PackOptions(PackFormat::int4).zero_point(true));
  save_weights(*shifted, path);
  const auto offsets = read_weights(path).at("fc_q.weight.offsets");
  EXPECT_EQ(offsets.scalar_type(), at::kBFloat16);
  EXPECT_EQ(offsets.sizes(), at::IntArrayRef({2, 3, 64}));
}

/// The file with one text in its header replaced by another one of the same length.
void replace(const std::string& path, const std::string& from, const std::string& to) {
  ASSERT_EQ(from.size(), to.size());
  auto bytes = bytes_of(path);
  const auto at = bytes.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  bytes.replace(at, from.size(), to);
  std::ofstream(path, std::ios::binary) << bytes;
}

class PackedFilesErrors : public testing::Test {
 protected:
  void write(PackFormat format) {
    auto attention = make_attention(96);
    pack_weights(*attention, format);
    save_weights(*attention, path_);
  }

  /// Expects an error that begins with this text, and that changes nothing.
  void expect(const std::string& text, const LoadOptions& options = {}) {
    auto attention = make_attention(96);
    const auto weight = attention->fc_v->weight.detach().clone(),
               bias = attention->fc_q->bias.detach().clone();
    const auto error =
        error_text<c10::ValueError>([&] { load_weights(*attention, path_, options); });
    EXPECT_EQ(error.substr(0, text.size()), text);
    ASSERT_TRUE(attention->fc_v->weight.has_storage());
    EXPECT_TRUE(are_equal({attention->fc_v->weight, attention->fc_q->bias}, {weight, bias}));
    EXPECT_TRUE(attention->fc_q->bias.requires_grad());
  }

  const std::string path_ = path_of("errors"), source_ = "path (" + path_ + ")",
                    of_file_ = "load_weights: " + source_ + ": ";
};

TEST_F(PackedFilesErrors, NameDescriptions) {
  for (const auto& [from, to] :
       {std::pair("int4", "int5"), std::pair("group\\\":32", "group\\\":48"),
        std::pair("F32\\\"", "F64\\\""), std::pair("shape", "shame"),
        std::pair("[96,96]", "[96,98]"), std::pair("[96,96]", "[-6,96]"),
        std::pair("[96,96]", "[96096]"),
        std::pair("zero_point\\\":false", "zero_point\\\":12345")}) {
    SCOPED_TRACE(to);
    write(PackFormat::int4);
    replace(path_, from, to);
    expect(
        of_file_ +
        "\"fc_k.weight\" must be packed by this version of heed or an older one; its metadata is "
        "\"");
  }
}

TEST_F(PackedFilesErrors, NameTensors) {
  write(PackFormat::int4);
  replace(path_, "[96,96]", "[32,96]");
  expect(of_file_ + "\"fc_k.weight.values\" must be Byte [1, 48, 64], as \"{");
  write(PackFormat::int4);
  replace(path_, "zero_point\\\":false", "zero_point\\\": true");
  expect(of_file_ + "\"fc_k.weight.offsets\" must be BFloat16 [2, 3, 64], as \"{");
  write(PackFormat::int8);
  replace(path_, "fc_q.weight.scales", "fc_q.weight.scalee");
  expect(of_file_ + "\"fc_q.weight.scales\" must be Float [2, 1, 64], as \"{");
  write(PackFormat::int8);
  replace(path_, "\"fc_q.bias\"", "\"fc_q.bia5\"");
  expect("load_weights: " + source_ + " must fit the module, 7 of whose 8 tensors do");
}

TEST_F(PackedFilesErrors, NameWhatTheModuleCannotTake) {
  write(PackFormat::int8);
  expect("load_weights: name_map and shards must not be given for " + source_ +
             ", whose weights are packed",
         LoadOptions().name_map(NameMap().rename("fc_q", "fc_q")));
  expect(
      "load_weights: device (meta) must be the CPU for " + source_ + ", whose weights are packed",
      LoadOptions().device(at::Device(at::kMeta)));
  MultiHeadAttention other(64, 4);
  const auto text = error_text<c10::ValueError>([&] { load_weights(*other, path_); });
  EXPECT_NE(text.find("fc_q.weight (Float [64, 64] in the module, Float [96, 96] in the file)"),
            std::string::npos)
      << text;
}

TEST_F(PackedFilesErrors, NameNumbersThatAreNotFinite) {
  write(PackFormat::int8);
  auto bytes = bytes_of(path_);
  // Scales are floats, which lie at the beginning of the data, before bytes. Biases are before them
  // in the order of names.
  const auto header = static_cast<size_t>(static_cast<unsigned char>(bytes[0])) +
                      256 * static_cast<size_t>(static_cast<unsigned char>(bytes[1]));
  const size_t first_bias = 96 * sizeof(float);
  const auto nan = std::numeric_limits<float>::quiet_NaN();
  bytes.replace(8 + header + first_bias, sizeof(nan), reinterpret_cast<const char*>(&nan),
                sizeof(nan));
  std::ofstream(path_, std::ios::binary) << bytes;
  expect(of_file_ + "\"fc_k.weight\" must have finite scales and offsets");
}

TEST_F(PackedFilesErrors, NameWhatCannotBeSavedOrLoaded) {
  auto attention = make_attention(96);
  save_weights(*attention, path_);
  pack_weights(*attention);
  EXPECT_ERROR("load_weights: fc_q.weight must not be packed by pack_weights",
               load_weights(*attention, path_));
  const std::string text =
      "save_weights: format must be safetensors, and name_map empty, for a module whose weights "
      "are packed";
  EXPECT_ERROR(text,
               save_weights(*attention, path_, SaveOptions().format(WeightFormat::torchscript)));
  EXPECT_ERROR(text, save_weights(*attention, path_, SaveOptions().name_map(name_maps::q_proj())));
}

TEST(QuantizedFilesErrors, NameTheProgramThatQuantizedThem) {
  const auto path = path_of("quantized");
  for (const auto& [name, program] : {std::pair("q_proj.qweight", "GPTQ or AWQ"),
                                      std::pair("q_proj.weight_packed", "compressed-tensors"),
                                      std::pair("q_proj.weight_scale_inv", "FP8"),
                                      std::pair("q_proj.weight.absmax", "bitsandbytes"),
                                      std::pair("experts.down_proj_blocks", "MXFP4")}) {
    auto attention = make_attention(96);
    save_weights({{name, at::zeros({3}, at::kInt)}}, path);
    const auto text = error_text<c10::ValueError>([&] { load_weights(*attention, path); });
    const auto end = fmt::format(
        "\n  The weights were quantized by {}, which heed does not read: load those of which they "
        "were made, and call pack_weights",
        program);
    EXPECT_NE(text.find(end), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace heed::test::of_packed_files
