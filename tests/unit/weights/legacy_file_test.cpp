// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/weights.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <utility>

#include "support/pickles.h"
#include "support/weight_files.h"

namespace heed::test::legacy_file {
namespace {

using namespace pickles;

/// Files of torch.save before version 1.6.
class LegacyFile : public WeightFiles {
 protected:
  at::Tensor load_x(const std::string& tensor, at::IntArrayRef sizes) const {
    write(legacy(dict(text("x") + tensor)));
    Box box({{"x", at::zeros(sizes)}});
    load_weights(box, path_);
    return box["x"];
  }

  /// The error of loading a file, after "must be a sound PyTorch file; ".
  std::string unsound(const std::string& file) const {
    write(file);
    const auto error = load_error();
    const std::string start = "must be a sound PyTorch file; ";
    EXPECT_EQ(error.substr(0, start.size()), start) << error;
    return error.substr(std::min(start.size(), error.size()));
  }

  const std::string kState = dict(text("x") + legacy_tensor(integer(6), integer(1)));
};

TEST_F(LegacyFile, HoldsTensorsWithTheirStrides) {
  const auto all = at::arange(6.F);
  EXPECT_TRUE(load_x(legacy_tensor(integer(2) + integer(3), integer(3) + integer(1)), {2, 3})
                  .equal(all.view({2, 3})));
  EXPECT_TRUE(load_x(legacy_tensor(integer(3) + integer(2), integer(1) + integer(3)), {3, 2})
                  .equal(all.view({2, 3}).t()));
  EXPECT_TRUE(load_x(legacy_tensor(integer(2), integer(2), 3), {2}).equal(all.slice(0, 3, 6, 2)));
  const auto parameter = call(global("torch._utils", "_rebuild_parameter"),
                              legacy_tensor(integer(6), integer(1)) + "\x88}");
  EXPECT_TRUE(load_x(parameter, {6}).equal(all));
}

/// Storages lie behind each other, in the order of their keys, and tensors may share one.
TEST_F(LegacyFile, HoldsSeveralStorages) {
  const auto whole = [](const std::string& from, int32_t count) {
    return tensor(integer(count), integer(1), 0, from);
  };
  const auto shorts = legacy_storage("ShortStorage", 3, "1");
  write(legacy(dict(text("a") + whole(shorts, 3) + text("b") + whole(shorts, 2) + text("x") +
                    whole(legacy_storage("FloatStorage", 2, "2"), 2)),
               {{"2", {2, bytes_of(1.5F) + bytes_of(2.5F)}},
                {"1", {3, bytes_of<int16_t>(7) + bytes_of<int16_t>(8) + bytes_of<int16_t>(9)}}}));
  const auto found = read_weights(path_);
  EXPECT_TRUE(found.at("a").equal(at::arange(7, 10, at::kShort)));
  EXPECT_TRUE(found.at("b").equal(at::arange(7, 9, at::kShort)));
  EXPECT_TRUE(found.at("x").equal(at::arange(1.5F, 3.F)));
  Box part({{"x", at::zeros({2})}});
  const auto report = load_weights(part, path_, LoadOptions().strict(false));
  EXPECT_EQ(report.unexpected, std::vector<std::string>({"a", "b"}));
  std::istringstream stream(read_bytes(path_));
  EXPECT_TRUE(read_weights(stream).at("a").equal(found.at("a")));
}

/// torch.save wrote such files before version 0.4.
TEST_F(LegacyFile, HoldsViewsOfStorages) {
  const auto view = [](int32_t first, int32_t count) {
    const auto fields = tuple(text("9") + integer(first) + integer(count));
    return tensor(integer(2), integer(1), 1, legacy_storage("FloatStorage", 6, "0", fields));
  };
  EXPECT_TRUE(load_x(view(2, 3), {2}).equal(at::arange(3.F, 5.F)));
  const auto error = [&](const std::string& tensor) {
    return unsound(legacy(dict(text("x") + tensor)));
  };
  EXPECT_EQ(error(view(4, 3)),
            "\"x\": its view of 3 elements from 4 on must fit its storage of 6 elements");
  EXPECT_EQ(error(view(INT32_MAX, 0)),
            "\"x\": its view of 0 elements from 2147483647 on must fit its storage of 6 elements");
  EXPECT_EQ(error(view(-1, 1)), "\"x\": its view's first element must be integers of 0 or more");
  EXPECT_EQ(error(view(4, 2)),
            "\"x\": sizes [2], strides [1] and offset 1 must fit its storage of 2 elements");
  const auto short_view = legacy_storage("FloatStorage", 6, "0", tuple(text("9")));
  EXPECT_EQ(error(tensor("", "", 0, short_view)),
            "\"x\": the view of its storage must have 3 fields");
}

TEST_F(LegacyFile, SelectsTheWeightsInACheckpoint) {
  write(legacy(dict(text("epoch") + integer(3) + text("model") + kState)));
  Box box({{"x", at::zeros({6})}});
  load_weights(box, path_, LoadOptions().key("model"));
  EXPECT_TRUE(box["x"].equal(at::arange(6.F)));
  EXPECT_EQ(load_error(),
            "must hold a dict of tensors; \"model\" is a dict: options.key says which of "
            "\"epoch\", \"model\" to load");
}

/// A pickle is read in pieces, because its end is not known before.
TEST_F(LegacyFile, MayHoldALongPickle) {
  std::string others;
  for (int i = 0; i < 1000; ++i)
    others += text("n" + std::to_string(i)) + text(std::string(200, 'a'));
  write(legacy(dict(others + text("x") + legacy_tensor(integer(6), integer(1)))));
  Box box({{"x", at::zeros({6})}});
  EXPECT_EQ(load_weights(box, path_).passed_over.size(), 1000);
  EXPECT_TRUE(box["x"].equal(at::arange(6.F)));
}

TEST_F(LegacyFile, RunsNothing) {
  const auto marker = (directory_ / "ran").string();
  write(legacy(call(global("posix", "system"), text("touch " + marker)), {}));
  EXPECT_EQ(load_error(),
            "must hold a dict of tensors; it holds a call of \"posix.system\", which is not run: "
            "save the module's state_dict() instead");
  EXPECT_FALSE(std::filesystem::exists(marker));
}

TEST_F(LegacyFile, ThatIsNotSoundIsRefused) {
  const auto rest = pickle(kState) + pickle("](" + text("0") + 'e');
  EXPECT_EQ(unsound(kLegacyMagic + pickle(integer(1000)) + rest),
            "its protocol must be 1001; it is 1000");
  EXPECT_EQ(unsound(kLegacyMagic + pickle("N") + rest), "its protocol must be 1001; it is None");
  const auto start = kLegacyMagic + pickle(integer(1001));
  EXPECT_EQ(unsound(start + pickle("N") + rest), "its machine must be a dict; it is None");
  EXPECT_EQ(unsound(start + pickle(dict(text("little_endian") + '\x89')) + rest),
            "little_endian must be True: save it on a machine of that order");
  const auto sound = start + pickle("}");
  EXPECT_EQ(unsound(sound + pickle(kState) + pickle("}")),
            "the keys of its storages must be a list; they are a dict");
  EXPECT_EQ(unsound(sound + pickle(kState) + pickle("](" + integer(1) + 'e')),
            "the key of a storage must be a string; it is an integer");
  EXPECT_EQ(unsound(sound + pickle(kState) + pickle("](" + text("1") + 'e')),
            "storage \"1\" must be in its object");
  EXPECT_EQ(unsound(sound + rest),
            "storage \"0\" must begin with its element count; 0 bytes are left");
  const auto with_count = [&](int64_t count) { return sound + rest + bytes_of(count); };
  EXPECT_EQ(unsound(with_count(6) + numbers_to(5)),
            "storage \"0\" must have its 6 elements of 4 bytes; 20 bytes are left");
  EXPECT_EQ(unsound(with_count(-1) + numbers_to(6)),
            "storage \"0\" must have its -1 elements of 4 bytes; 24 bytes are left");
  EXPECT_EQ(unsound(with_count(INT64_MAX) + numbers_to(6)),
            "storage \"0\" must have its 9223372036854775807 elements of 4 bytes; 24 bytes are "
            "left");
  EXPECT_EQ(unsound(with_count(5) + numbers_to(6)),
            "\"x\": storage \"0\" (20 bytes) must hold its 6 elements of 4 bytes");
  const auto twice = pickle("](" + text("0") + text("0") + 'e');
  const auto storage = bytes_of(int64_t{6}) + numbers_to(6);
  EXPECT_EQ(unsound(sound + pickle(kState) + twice + storage + storage),
            "storage \"0\" must be there once");
  EXPECT_EQ(unsound(sound + pickle(kState) + pickle("]")), "it must hold a storage \"0\"");
  const auto strange = legacy_storage("StrangeStorage", 6);
  EXPECT_EQ(unsound(legacy(dict(text("x") + tensor("", "", 0, strange)))),
            "storage \"0\" must be of a type that heed knows");
}

TEST_F(LegacyFile, WhosePicklesAreCutShortIsRefused) {
  EXPECT_EQ(unsound(kLegacyMagic), "protocol byte 0: 1 bytes must follow; there are 0");
  EXPECT_EQ(unsound(kLegacyMagic + "\x80\x02M"),
            "protocol byte 2: 2 bytes must follow; there are 0");
  const auto start = kLegacyMagic + pickle(integer(1001)) + pickle("}");
  const auto huge = std::string("\x80\x04\x8d") + bytes_of(INT64_MAX);  // BINUNICODE8
  EXPECT_EQ(unsound(start + huge),
            "object byte 2: 9223372036854775807 bytes must follow; there are 0");
  EXPECT_EQ(unsound(start + "\x80\x02" + "ctorch"),
            "object byte 2: a name must end with a line feed");
  EXPECT_EQ(unsound(start + "\x80\x02\xff" + std::string(100'000, 'a')),
            "object byte 2: opcode 0xff must be one of protocols 2 to 5");
  const auto whole = legacy(kState);
  for (size_t size = kLegacyMagic.size(); size < whole.size(); ++size) {
    unsound(whole.substr(0, size));
  }
}

TEST_F(LegacyFile, IsNoOtherPickle) {
  write(pickle("}"));
  EXPECT_EQ(load_error(),
            "must not be a bare pickle, as pickle.dump writes it: torch.save what it holds");
}

/// A model in several files, as save_pretrained wrote them: zip archives, or older ones.
TEST_F(LegacyFile, MayBeAShard) {
  write(directory_ / "one.bin",
        archive_of(saved(pickle(dict(text("y") + kWhole + text("step") + integer(1))))));
  write(directory_ / "two.bin", legacy(kState));
  write(R"({"metadata": {"total_size": 48}, "weight_map": {"x": "two.bin", "y": "one.bin"}})");
  Box box({{"x", at::zeros({6})}, {"y", at::zeros({2, 3})}});
  EXPECT_EQ(load_weights(box, path_).passed_over, std::vector<std::string>({"step"}));
  EXPECT_TRUE(box["x"].equal(at::arange(6.F)));
  EXPECT_TRUE(box["y"].equal(at::arange(6.F).view({2, 3})));
  EXPECT_EQ(value_error([&] { load_weights(box, path_, LoadOptions().key("k")); }),
            "load_weights: key (k) must be empty: path (" + path_ +
                ") is an index; options.prefix selects names");
  const auto error = [&](const std::string& map) {
    write("{\"weight_map\": {" + map + "}}");
    return load_error();
  };
  const std::string sound = "must be a sound index file; ";
  EXPECT_EQ(error(R"("x": "one.bin", "y": "one.bin")"),
            sound + "\"one.bin\" must hold tensor \"x\"");
  EXPECT_EQ(error(R"("x": "two.bin", "z": "one.bin")"),
            sound + "\"one.bin\" must hold tensor \"z\"");
  write(directory_ / "two.bin",
        legacy(dict(text("x") + legacy_tensor("", "") + text("y") + legacy_tensor("", ""))));
  EXPECT_EQ(error(R"("x": "two.bin", "y": "one.bin")"),
            sound + "weight_map must say of tensor \"y\" that \"two.bin\" holds it");
  EXPECT_EQ(error(R"("x": "../two.bin")"),
            sound + "weight_map: \"../two.bin\" must be the name of a file beside the index");
}

}  // namespace
}  // namespace heed::test::legacy_file
