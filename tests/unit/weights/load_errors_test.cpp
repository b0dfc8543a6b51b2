// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <heed/attention.h>
#include <heed/group_query_attention.h>
#include <heed/transformer.h>
#include <heed/weights.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "support/expect.h"
#include "support/pickles.h"
#include "unit/weights/saved_tensors.h"
#include "weights/misfits.h"

namespace heed::test {
namespace {

using ::testing::ElementsAre;

TEST_F(Weights, MissingNamesAreListedWithOnlySimilarNames) {
  AttentionV1 module(2);
  save({{"qvk.weight", at::ones({6, 2})}, {"zzz.z", at::ones({6})}});
  EXPECT_EQ(load_error(*module), "load_weights: path (" + path_ +
                                     ") must fit the module, 0 of whose 2 tensors do\n"
                                     "  missing: qkv.weight (nearest in the file: qvk.weight)\n"
                                     "  missing: qkv.bias\n"
                                     "  unexpected: qvk.weight\n"
                                     "  unexpected: zzz.z\n"
                                     "  LoadOptions that may help: name_map");
  save({{"qkv.weight", at::ones({6, 2})}});
  EXPECT_EQ(load_error(*module),
            "load_weights: path (" + path_ +
                ") must fit the module, 1 of whose 2 tensors do\n  missing: qkv.bias");
}

TEST_F(Weights, MisfitsAreShownByTheFilesOwnNamesAndShapes) {
  Attention module(4);
  save({{"model.c_q.weight", at::ones({4, 8})},
        {"model.c_q.bias", at::ones({4})},
        {"model.c_k.weight", at::ones({4, 4})},
        {"model.c_k.bias", at::ones({4})},
        {"model.c_v.weight", at::ones({4, 4})},
        {"model.c_v.bias", at::ones({4})}});
  const auto names =
      NameMap().transpose("c_q", "fc_q").rename("c_k", "fc_key").rename("c_v", "fc_v");
  const auto options = LoadOptions().prefix("model.").name_map(names);
  EXPECT_EQ(load_error(*module, options),
            "load_weights: path (" + path_ +
                ") must fit the module, 3 of whose 6 tensors do\n"
                "  missing: fc_k.weight (nearest in the file: model.c_k.weight)\n"
                "  missing: fc_k.bias (nearest in the file: model.c_k.bias)\n"
                "  unexpected: model.c_k.bias (by the name map fc_key.bias)\n"
                "  unexpected: model.c_k.weight (by the name map fc_key.weight)\n"
                "  misshapen: fc_q.weight (Float [4, 4] in the module, Float [4, 8] in the file: "
                "model.c_q.weight, by the name map [8, 4])\n"
                "  LoadOptions that may help: name_map");
  EXPECT_THAT(load_weights(*module, path_, LoadOptions(options).strict(false)).unexpected,
              ElementsAre("model.c_k.bias", "model.c_k.weight"));
}

TEST_F(Weights, MisfitsSayWhichOptionsMayHelp) {
  AttentionV1 module(2);
  const auto start =
      "load_weights: path (" + path_ + ") must fit the module, 0 of whose 2 tensors do\n";
  save({{"encoder.qkv.weight", at::ones({6, 2})}, {"encoder.qkv.bias", at::ones({6})}});
  EXPECT_EQ(load_error(*module), start +
                                     "  missing: qkv.weight\n"
                                     "  missing: qkv.bias\n"
                                     "  unexpected: encoder.qkv.bias\n"
                                     "  unexpected: encoder.qkv.weight\n"
                                     "  LoadOptions that may help: prefix (\"encoder.\")");
  save({{"qkv.weight", at::ones({2, 6})}, {"qkv.bias", at::ones({6}, at::kDouble)}});
  EXPECT_EQ(load_error(*module),
            start +
                "  misshapen: qkv.weight (Float [6, 2] in the module, Float [2, 6] in the file)\n"
                "  misshapen: qkv.bias (Float [6] in the module, Double [6] in the file)\n"
                "  LoadOptions that may help: name_map, dtype (Float)");
}

TEST_F(Weights, MisfitsOfEqualLayersAreOneLine) {
  const auto block = TransformerBlockOptions(GroupQueryAttentionOptions(4, 2, 2));
  auto without_biases = block;
  save_weights(*Encoder(EncoderOptions(without_biases.norm_bias(false), 3).final_norm(false)),
               path_);
  EXPECT_EQ(load_error(*Encoder(EncoderOptions(block, 3))),
            "load_weights: path (" + path_ +
                ") must fit the module, 42 of whose 50 tensors do\n"
                "  missing: blocks.{0..2}.attention_norm.bias\n"
                "  missing: blocks.{0..2}.feed_forward_norm.bias\n"
                "  missing: final_norm.weight\n"
                "  missing: final_norm.bias");
}

TEST(Misfits, FoldTheFirstNumberOfAName) {
  detail::Misfits misfits;
  EXPECT_EQ(detail::describe(misfits), "");
  misfits.missing = {"h.0.w", "h.1.w", "h.10.w", "h.3.w", "h.x.w", "0.w", "w.0", "w1.b", "w2.b"};
  EXPECT_EQ(detail::describe(misfits),
            "\n  missing: h.{0..1,3,10}.w\n  missing: h.x.w\n  missing: 0.w\n  missing: w.0"
            "\n  missing: w1.b\n  missing: w2.b");
  // A name with two numbers, layer and expert, is folded over the layers only. Names of the file
  // are folded where their numbers are those of the module's.
  misfits.missing = {"h.0.e.1.w", "h.1.e.1.w"};
  misfits.misshapen = {"h.0.w (Float [4] in the module, Float [8] in the file: l.0.w)",
                       "h.1.w (Float [4] in the module, Float [8] in the file: l.1.w)",
                       "h.2.w (Float [4] in the module, Float [8] in the file: l.0.w)"};
  EXPECT_EQ(detail::describe(misfits),
            "\n  missing: h.{0..1}.e.1.w"
            "\n  misshapen: h.{0..1}.w (Float [4] in the module, Float [8] in the file: l.{0..1}.w)"
            "\n  misshapen: h.2.w (Float [4] in the module, Float [8] in the file: l.0.w)");
}

TEST_F(Weights, NeedAFile) {
  Attention module(2);
  for (const auto& path : {directory_ / "absent.pt", std::filesystem::path()}) {
    EXPECT_EQ(value_error([&] { load_weights(*module, path); }),
              "load_weights: path (" + path.string() + ") must name an existing file");
  }
  EXPECT_EQ(value_error([&] { load_weights(*module, directory_); }),
            "load_weights: path (" + directory_.string() + ") must name a file; it is a folder");
}

TEST_F(Weights, NeedAFileOfAKnownFormat) {
  Attention module(2);
  const auto before = copies(module->named_parameters());
  const auto formats = "load_weights: path (" + path_ +
                       ") must be a safetensors file or its index, or what torch.save, "
                       "torch.export.save or torch.jit.save wrote; ";
  write("");
  EXPECT_EQ(load_error(*module), formats + "it is empty: write or download it again");
  write(std::string(1000, 'x'));
  EXPECT_EQ(load_error(*module), formats + "its 1000 bytes begin with \"xxxxxxxx\"");
  const auto pickled = torch::jit::pickle_save(at::ones({2, 2}));
  write({pickled.begin(), pickled.end()});
  EXPECT_EQ(load_error(*module), "load_weights: path (" + path_ +
                                     ") must hold a dict of tensors; it holds a tensor: save a "
                                     "dict that gives it a name instead");
  save(module->named_parameters());
  const auto size = std::filesystem::file_size(path_);
  std::filesystem::resize_file(path_, size / 2);
  EXPECT_EQ(
      load_error(*module),
      "load_weights: path (" + path_ +
          ") must be a sound PyTorch file; it must end with a zip archive's directory (size " +
          std::to_string(size / 2) + ")");
  expect_equal_tensors(module->named_parameters(), before);
}

/// Files that are often given instead of weights; after the advice is followed, weights load.
TEST_F(Weights, SayWhatAnotherFileIs) {
  Attention module(2);
  const auto weights = directory_ / "model.safetensors";
  save_weights(*module, weights);
  std::ifstream file(weights, std::ios::binary);
  const std::string safetensors(std::istreambuf_iterator<char>(file), {});
  const auto formats = "load_weights: path (" + path_ +
                       ") must be a safetensors file or its index, or what torch.save, "
                       "torch.export.save or torch.jit.save wrote; ";
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid "
      "sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";
  const auto lfs =
      "it is a pointer of Git LFS, which stands for the file: run git lfs pull in its folder";
  write(pointer);
  EXPECT_EQ(load_error(*module), formats + lfs);
  write(safetensors);  // as git lfs pull does
  EXPECT_EQ(load_weights(*module, path_).loaded.size(), 6U);
  for (const auto* page : {"<!DOCTYPE html><html>", "\n <html lang=\"en\">", "<!doctype HTML>"}) {
    write(page);
    EXPECT_EQ(load_error(*module),
              formats +
                  "it is an HTML page: download the file itself, whose address on "
                  "huggingface.co has /resolve/ where that of its page has /blob/");
  }
  write("GGUF\3" + std::string(100, '\0'));
  EXPECT_EQ(load_error(*module),
            formats +
                "it is a GGUF file, which llama.cpp reads: pass the model's safetensors, of "
                "which it was made");
  write(pickles::flat_zip({{"model.safetensors", safetensors}}));
  EXPECT_EQ(load_error(*module),
            formats + "it is a zip archive of other files, \"model.safetensors\": unpack it");
  EXPECT_EQ(load_weights(*module, weights).loaded.size(), 6U);
  write(pickles::flat_zip({{"a.npy", "1"}, {"b.npy", "2"}, {"c.npy", "3"}, {"d.npy", "4"}}));
  EXPECT_EQ(load_error(*module), formats +
                                     "it is a zip archive of other files, \"a.npy\", \"b.npy\", "
                                     "\"c.npy\", ...: in Python, "
                                     "safetensors.numpy.save_file(dict(numpy.load(path)), "
                                     "\"weights.safetensors\") makes a file of NumPy's arrays that "
                                     "heed reads");
  // A clone without Git LFS has the index itself, and pointers beside it.
  write(R"({"weight_map": {"fc_q.weight": "model.safetensors"}})");
  std::ofstream(weights, std::ios::binary) << pointer;
  EXPECT_EQ(load_error(*module),
            "load_weights: path (" + path_ +
                ") must be a sound index file; weight_map: "
                "\"model.safetensors\" must be a safetensors file or what torch.save wrote; " +
                lfs);
  EXPECT_EQ(value_error([&] { read_weights(directory_); }),
            "read_weights: path (" + directory_.string() +
                ") must name a file; it is a folder, whose weights are " + weights.string());
}

TEST_F(Weights, NeedAnArchiveThatIsNotFrozen) {
  Attention module(2);
  torch::jit::Module scripted(c10::QualifiedName("__torch__.Frozen"));
  scripted.register_parameter("weight", at::ones({2}), /*is_buffer=*/false);
  scripted.define("def forward(self, x):\n  return self.weight * x\n");
  scripted.eval();
  torch::jit::freeze(scripted).save(path_);
  for (const bool strict : {true, false}) {
    EXPECT_EQ(load_error(*module, LoadOptions().strict(strict)),
              "load_weights: path (" + path_ +
                  ") must hold weights by name; those of a frozen module (torch.jit.freeze, "
                  "optimize_for_inference) are constants of its code: export the module before it "
                  "is frozen");
  }
}

}  // namespace
}  // namespace heed::test
