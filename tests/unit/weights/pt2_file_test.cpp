// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/weights.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "support/pickles.h"
#include "support/weight_files.h"
#include "unit/weights/pt2_archives.h"

namespace heed::test::pt2_file {
namespace {

using Strings = std::vector<std::string>;

TEST_F(Pt2File, HoldsTensorsWithTheirStrides) {
  Entry transposed, part, tied, scalar, repeated, empty, flag;
  transposed.shape = {3, 2}, transposed.strides = {1, 3};
  part.shape = {2}, part.strides = {2}, part.offset = 3;
  scalar.shape = {}, scalar.strides = {}, scalar.offset = 4;
  repeated.shape = {4}, repeated.strides = {0}, repeated.offset = 5;
  empty.record = "weight_1", empty.shape = {0, 3};
  flag.record = "weight_2", flag.shape = {}, flag.strides = {}, flag.dtype = 12;
  const auto file = exported({{"data/weights/weight_1", ""},
                              {"data/weights/weight_2", "\1"},
                              {kWeights, config({{"x", Entry().json()},
                                                 {"transposed", transposed.json()},
                                                 {"part", part.json()},
                                                 {"tied", tied.json()},
                                                 {"scalar", scalar.json()},
                                                 {"repeated", repeated.json()},
                                                 {"empty", empty.json()},
                                                 {"flag", flag.json()}})}});
  const auto all = at::arange(6.F);
  const NamedTensors expected{{"x", all.view({2, 3})},
                              {"transposed", all.view({2, 3}).t()},
                              {"part", all.slice(0, 3, 6, 2)},
                              {"tied", all.view({2, 3})},
                              {"scalar", all[4]},
                              {"repeated", all.slice(0, 5).expand(4)},
                              {"empty", at::zeros({0, 3})},
                              {"flag", at::ones({}, at::kBool)}};
  auto flat = file;
  flat.erase("byteorder");
  for (const auto& archive : {archive_of(file), flat_zip(file), flat_zip(flat)}) {
    write(archive);
    const auto found = read_weights(path_);
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [name, tensor] : expected) {
      EXPECT_EQ(found.at(name).scalar_type(), tensor.scalar_type()) << name;
      EXPECT_TRUE(found.at(name).equal(tensor)) << name;
    }
    Box box({{"x", at::zeros({2, 3})}, {"part", at::zeros({2})}});
    const auto report = load_weights(box, path_, LoadOptions().strict(false));
    EXPECT_EQ(report.loaded, Strings({"part", "x"}));
    EXPECT_EQ(report.unexpected,
              Strings({"empty", "flag", "repeated", "scalar", "tied", "transposed"}));
    EXPECT_TRUE(box["part"].equal(expected.at("part")));
  }
}

TEST_F(Pt2File, IsLoadedByNameAsOtherFormatsAre) {
  write_archive(exported({{kWeights, config({{"model.W_q.weight", Entry().json()}})}}));
  const auto options = LoadOptions().prefix("model.").name_map(NameMap().rename("W_q", "fc_q"));
  Box wrong({{"x", at::zeros({2, 3})}});
  EXPECT_EQ(load_error(options),
            "must fit the module, 0 of whose 0 tensors do\n"
            "  unexpected: model.W_q.weight (by the name map fc_q.weight)");
  EXPECT_EQ(value_error([&] { load_weights(wrong, path_, LoadOptions().prefix("W")); }),
            "load_weights: prefix (W) must begin a name in path (" + path_ +
                "), which holds model.W_q.weight");

  torch::nn::Module outer("Outer");
  auto box = std::make_shared<Box>(NamedTensors{{"weight", at::zeros({2, 3})}});
  outer.register_module("fc_q", box);
  EXPECT_EQ(load_weights(outer, path_, options).loaded, Strings({"fc_q.weight"}));
  EXPECT_TRUE((*box)["weight"].equal(at::arange(6.F).view({2, 3})));
}

TEST_F(Pt2File, IsReadInParts) {
  constexpr int64_t kRows = 1000, kColumns = 1000;
  Entry entry;
  entry.shape = {kRows, kColumns}, entry.strides = {kColumns, 1};
  write_archive(exported({{"data/weights/weight_0", numbers_to(kRows * kColumns)},
                          {kWeights, config({{"x", entry.json()}})}}));
  Box half({{"x", at::zeros({kRows / 2, kColumns})}});
  const TensorShard rows{/*dim=*/0, /*first=*/kRows / 2, /*size=*/kRows / 2, /*whole=*/kRows};
  const auto report = load_weights(half, path_, LoadOptions().shards({{"x", rows}}));
  const auto all = at::arange(static_cast<float>(kRows * kColumns)).view({kRows, kColumns});
  EXPECT_TRUE(half["x"].equal(all.narrow(0, kRows / 2, kRows / 2)));
  EXPECT_LT(report.bytes_read,
            4 * kRows * kColumns / 2 + 100'000);  // a zip archive is read from its end
}

TEST_F(Pt2File, HoldsConstantsThatAModuleMayLack) {
  Entry table, lifted;
  table.record = "tensor_0", lifted.record = "tensor_1";
  const std::string object =
      R"({"path_name": "custom_obj_0", "is_param": false, "use_pickle": true, "tensor_meta": null})";
  auto file = exported({{"data/constants/tensor_0", numbers_to(6)},
                        {"data/constants/tensor_1", numbers_to(6)},
                        {kConstants, config({{"z.table", table.json()},
                                             {"lifted_tensor_0", lifted.json()},
                                             {"packed", object}})}});
  write_archive(file);
  Box box({{"x", at::zeros({2, 3})}});
  const auto report = load_weights(box, path_);
  EXPECT_EQ(report.loaded, Strings({"x"}));
  EXPECT_EQ(report.unexpected, Strings());
  EXPECT_EQ(report.passed_over, Strings({"lifted_tensor_0", "packed", "z.table"}));
  EXPECT_EQ(read_weights(path_).size(), 3);

  Box with_table({{"x", at::zeros({2, 3})}, {"lifted_tensor_0", at::zeros({2, 3})}});
  EXPECT_EQ(load_weights(with_table, path_).loaded, Strings({"lifted_tensor_0", "x"}));
  EXPECT_TRUE(with_table["lifted_tensor_0"].equal(at::arange(6.F).view({2, 3})));
  Box inner({{"table", at::zeros({2, 3})}});
  EXPECT_EQ(load_weights(inner, path_, LoadOptions().prefix("z.")).loaded, Strings({"table"}));
  Box with_object({{"x", at::zeros({2, 3})}, {"packed", at::zeros({2})}});
  EXPECT_EQ(value_error([&] { load_weights(with_object, path_); }),
            "load_weights: path (" + path_ +
                ") must fit the module, 1 of whose 2 tensors do\n"
                "  misshapen: packed (Float [2] in the module, an object, which is not read in the "
                "file)");

  file[kConstants] = config({{"x", table.json()}});
  write_archive(file);
  EXPECT_EQ(load_error(), "must be a sound PyTorch file; \"x\" must be there once");
  file[kConstants] = config({{"x", object}});
  write_archive(file);
  EXPECT_EQ(load_error(), "must be a sound PyTorch file; \"x\" must be there once");
}

TEST_F(Pt2File, OfAOTInductorHoldsViewsOfSavedTensors) {
  const std::string config =
      R"({"x": ["weight_0", [2, 3], [3, 1], 0], "y": ["weight_0", [2], [2], 3]})";
  const auto expected = at::arange(6.F);
  // The saved tensor is a part of its storage; the offset counts from the storage's begin.
  for (const auto& weight : {kWhole, tensor(integer(2), integer(1), 4)}) {
    write_archive(compiled(config, pickle(weight)));
    const auto found = read_weights(path_);
    EXPECT_TRUE(found.at("x").equal(expected.view({2, 3})));
    EXPECT_TRUE(found.at("y").equal(expected.slice(0, 3, 6, 2)));
  }
  const auto error = [&](const std::string& entry) {
    write_archive(compiled("{\"x\": " + entry + "}", pickle(kWhole)));
    return load_error();
  };
  const std::string sound = "must be a sound PyTorch file; ";
  EXPECT_EQ(error(R"(["weight_1", [2, 3], [3, 1], 0])"),
            sound + "it must hold a record \"data/weights/weight_1\"");
  EXPECT_EQ(error(R"(["weight_0", [2, 3], [3, 1]])"),
            sound + "\"x\": it must be a record, sizes, strides and an offset");
  EXPECT_EQ(error(R"(["weight_0", 6, [1], 0])"),
            sound + "\"x\": its sizes must be an array of at most 64");
  write_archive(compiled(R"({"x": ["weight_0", [2, 3], [3, 1], 1]})", pickle(kWhole)));
  EXPECT_EQ(record_error(),
            "\"data/weights/weight_0\") must be a sound PyTorch file; \"x\": sizes [2, 3], strides "
            "[3, 1] and offset 1 must fit its storage of 6 elements");
}

TEST_F(Pt2File, OfAOTInductorWithoutWeightsSaysHowToPackageThem) {
  auto file = compiled("", pickle(kWhole));
  file.erase(kCompiled);
  file.erase("data/weights/weight_0");
  for (const auto& archive : {archive_of(file), flat_zip(file)}) {
    write(archive);
    EXPECT_EQ(
        load_error(),
        "must hold weights by name; those of \"model\" are left to its compiled code: package it "
        "with aot_inductor.package_constants_in_so=False and "
        "aot_inductor.package_constants_on_disk_format=\"pickle_weights\", or save the program "
        "with torch.export.save");
  }
}

TEST_F(Pt2File, OfOlderVersionsHoldsStateDicts) {
  const auto weights = archive_of(saved(pickle(dict(text("x") + kWhole + text("n") + integer(3)))));
  const auto constants = archive_of(saved(pickle(dict(text("table") + kWhole))));
  const Records before_2_8{{"serialized_exported_program.json", "{}"},
                           {"serialized_state_dict.pt", weights},
                           {"serialized_constants.pt", constants},
                           {"version", "8.8"},
                           {"extra_files/version", "mine"}};
  const Records in_2_8{{"archive_format", "pt2"},
                       {"models/model.json", "{}"},
                       {"data/weights/model.pt", weights},
                       {"data/constants/model.pt", constants}};
  for (const auto& archive : {flat_zip(before_2_8), flat_zip(in_2_8), archive_of(in_2_8)}) {
    write(archive);
    Box box({{"x", at::zeros({2, 3})}});
    const auto report = load_weights(box, path_);
    EXPECT_TRUE(box["x"].equal(at::arange(6.F).view({2, 3})));
    EXPECT_EQ(report.passed_over, Strings({"n", "table"}));
    EXPECT_EQ(load_weights(box, path_, LoadOptions().key("model")).loaded, Strings({"x"}));
  }
  auto file = before_2_8;
  file["serialized_constants.pt"] = "";
  write(flat_zip(file));
  EXPECT_EQ(read_weights(path_).size(), 1);
  file["serialized_state_dict.json"] = file["serialized_state_dict.pt"];
  file.erase("serialized_state_dict.pt");
  write(flat_zip(file));
  EXPECT_EQ(load_error(),
            "must be a sound PyTorch file; it must hold a record \"serialized_state_dict.pt\"");
}

TEST_F(Pt2File, WithSeveralModelsAsksWhich) {
  Entry other;
  other.record = "weight_1", other.shape = {6}, other.strides = {1};
  write_archive(exported({{"models/other.json", "{}"},
                          {"data/aotinductor/third/a.so", ""},
                          {"data/weights/weight_1", numbers_to(6)},
                          {"data/weights/other_weights_config.json", config({{"y", other.json()}})},
                          {"data/constants/other_constants_config.json", config({})}}));
  EXPECT_EQ(load_error(),
            "must hold one model; options.key says which of \"model\", \"other\", \"third\" to "
            "load");
  EXPECT_EQ(value_error([&] { read_weights(path_, "fourth"); }),
            "read_weights: key (fourth) must be in path (" + path_ +
                "), which holds \"model\", \"other\", \"third\"");
  EXPECT_TRUE(read_weights(path_, "model").at("x").equal(at::arange(6.F).view({2, 3})));
  EXPECT_TRUE(read_weights(path_, "other").at("y").equal(at::arange(6.F)));
  write_archive({{"archive_format", "pt2"}, {"data/executorch/model.pte", ""}});
  EXPECT_EQ(load_error(), "must hold a program of torch.export or AOTInductor");
}

TEST_F(Pt2File, RunsNothing) {
  const auto marker = (directory_ / "ran").string();
  const auto attack = pickle(call(global("posix", "system"), text("touch " + marker)));
  Entry entry;
  entry.pickled = true;
  const auto file = exported({{"data/weights/weight_0", archive_of(saved(attack))},
                              {"data/sample_inputs/model.pt", archive_of(saved(attack))},
                              {"data/constants/opaque_obj_0", attack},
                              {kWeights, config({{"x", entry.json()}})}});
  const std::string refused =
      "must be a sound PyTorch file; \"x\": it must be a tensor; it is a call of "
      "\"posix.system\", which is not run";
  write_archive(file);
  EXPECT_EQ(record_error(), "\"data/weights/weight_0\") " + refused);
  write_archive(compiled(R"({"x": ["weight_0", [2], [1], 0]})", attack));
  EXPECT_EQ(record_error(), "\"data/weights/weight_0\") " + refused);
  write(flat_zip({{"serialized_exported_program.json", "{}"},
                  {"serialized_state_dict.pt", archive_of(saved(attack))}}));
  EXPECT_EQ(record_error(),
            "\"serialized_state_dict.pt\") must hold a dict of tensors; it holds a call of "
            "\"posix.system\", which is not run: save the module's state_dict() instead");
  EXPECT_FALSE(std::filesystem::exists(marker));
}

TEST_F(Pt2File, MayHoldPickledTensors) {
  Entry entry;
  entry.pickled = true;
  write_archive(exported({{"data/weights/weight_0", archive_of(saved(pickle(kWhole)))},
                          {kWeights, config({{"x", entry.json()}, {"y", entry.json()}})}}));
  const auto found = read_weights(path_);
  EXPECT_TRUE(found.at("x").equal(at::arange(6.F).view({2, 3})));
  EXPECT_TRUE(found.at("y").equal(found.at("x")));
}

}  // namespace
}  // namespace heed::test::pt2_file
