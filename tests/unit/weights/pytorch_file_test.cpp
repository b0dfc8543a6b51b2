// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/weights.h>
#include <torch/serialize.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "support/pickles.h"
#include "support/warnings.h"
#include "support/weight_files.h"

namespace heed::test::pytorch_file {
namespace {

using namespace pickles;

using std::string_literals::operator""s;

class PytorchFile : public WeightFiles {
 protected:
  void write_archive(const std::string& pickle, const Records& more = {},
                     bool compress_all = false) const {
    auto records = saved(pickle);
    for (const auto& [name, bytes] : more) records[name] = bytes;
    write(archive_of(records, compress_all));
  }

  std::string pickle_error(const std::string& program, const LoadOptions& options = {}) const {
    write_archive(pickle(program));
    return load_error(options);
  }

  at::Tensor load_x(const std::string& program, at::IntArrayRef sizes,
                    const LoadOptions& options = {}) const {
    write_archive(pickle(program));
    Box box({{"x", at::zeros(sizes)}});
    load_weights(box, path_, options);
    return box["x"];
  }
};

TEST_F(PytorchFile, HoldsTensorsWithTheirStrides) {
  const auto all = at::arange(6.F);
  const auto x = [&](const std::string& tensor) { return dict(text("x") + tensor); };
  EXPECT_TRUE(load_x(x(kWhole), {2, 3}).equal(all.view({2, 3})));
  EXPECT_TRUE(load_x(x(tensor(integer(3) + integer(2), integer(1) + integer(3))), {3, 2})
                  .equal(all.view({2, 3}).t()));
  EXPECT_TRUE(load_x(x(tensor(integer(2), integer(2), 3)), {2}).equal(all.slice(0, 3, 6, 2)));
  EXPECT_TRUE(load_x(x(tensor(integer(4), integer(0), 5)), {4}).equal(all.slice(0, 5).expand(4)));
  EXPECT_TRUE(load_x(x(tensor("", "", 4)), {}).equal(all[4]));
  EXPECT_EQ(load_x(x(tensor(integer(0), integer(1), 6)), {0}).numel(), 0);
  EXPECT_TRUE(
      load_x(x(call(global("torch._utils", "_rebuild_parameter"), kWhole + "\x88}")), {2, 3})
          .equal(all.view({2, 3})));
}

TEST_F(PytorchFile, SelectsTheWeightsInACheckpoint) {
  // Beside the weights, an object of a class that is not looked up.
  const auto other = call(global("argparse", "Namespace"), "") + dict(text("a") + integer(1)) + 'b';
  const auto checkpoint = dict(text("model") + dict(text("x") + kWhole) + text("args") + other +
                               text("ema.best") + dict(text("model") + dict(text("x") + kWhole)));
  const auto expected = at::arange(6.F).view({2, 3});
  EXPECT_TRUE(load_x(checkpoint, {2, 3}, LoadOptions().key("model")).equal(expected));
  EXPECT_TRUE(load_x(checkpoint, {2, 3}, LoadOptions().key("ema.best.model")).equal(expected));
  EXPECT_EQ(load_error(),
            "must hold a dict of tensors; \"model\" is a dict: options.key says which of "
            "\"model\", \"args\", \"ema.best\" to load");
  Box box({});
  const auto key_error = [&](const std::string& key) {
    return value_error([&] { load_weights(box, path_, LoadOptions().key(key)); });
  };
  EXPECT_EQ(key_error("modle"), "load_weights: key (modle) must be in path (" + path_ +
                                    "), which holds \"model\", \"args\", \"ema.best\"");
  EXPECT_EQ(key_error("args.a"), "load_weights: key (args.a) must lead through dicts in path (" +
                                     path_ +
                                     "); \"args.\" is a call of \"argparse.Namespace\", "
                                     "which is not run");
}

TEST_F(PytorchFile, RunsNothing) {
  const auto marker = (directory_ / "ran").string();
  const auto command = text("touch " + marker);
  const auto attack = call(global("posix", "system"), command);
  EXPECT_EQ(pickle_error(attack),
            "must hold a dict of tensors; it holds a call of \"posix.system\", which is not run: "
            "save the module's state_dict() instead");
  const auto eval = text("builtins") + text("eval") + "\x93" + tuple(command) + 'R';
  Box box({{"x", at::zeros({2})}, {"y", at::zeros({2})}, {"z", at::zeros({2})}});
  const auto with_tensor = text("z") + tensor(integer(2), integer(1));
  write_archive(pickle(dict(text("x") + attack + text("y") + eval + with_tensor)));
  EXPECT_EQ(value_error([&] { load_weights(box, path_); }),
            "load_weights: path (" + path_ +
                ") must fit the module, 1 of whose 3 tensors do\n"
                "  misshapen: x (Float [2] in the module, a call of \"posix.system\", which is not "
                "run in the file)\n"
                "  misshapen: y (Float [2] in the module, a call of \"builtins.eval\", which is "
                "not run in the file)");
  EXPECT_EQ(pickle_error(global("my", "Model") + ")\x81}b"),
            "must hold a dict of tensors; it holds a call of \"my.Model\", which is not run: save "
            "the module's state_dict() instead");
  EXPECT_FALSE(std::filesystem::exists(marker));
}

/// As torch.save writes them beside tensors: step counts, None, what get_extra_state() returned.
TEST_F(PytorchFile, MayHoldWhatIsNoTensor) {
  const auto others = text("step") + integer(3) + text("_metadata") + 'N' + text("name") +
                      text("best") + text("sizes") + tuple(integer(1)) + text("class") +
                      global("my", "Model") + text("args") + call(global("my", "Args"), "") +
                      text("optimizer") + dict(text("lr") + integer(1)) + text("m._extra_state") +
                      dict(text("amax") + kWhole) + text("object") + global("my", "Options") + ')' +
                      '}' + '\x92';  // NEWOBJ_EX, of protocol 4
  write_archive(pickle(dict(others + text("x") + kWhole)));
  Box box({{"x", at::zeros({2, 3})}});
  const std::vector<std::string> names{"_metadata",      "args",  "class",
                                       "m._extra_state", "name",  "object",
                                       "optimizer",      "sizes", "step"};
  const auto report = load_weights(box, path_);
  EXPECT_EQ(report.loaded, std::vector<std::string>({"x"}));
  EXPECT_EQ(report.unexpected, std::vector<std::string>());
  EXPECT_EQ(report.passed_over, names);
  EXPECT_TRUE(box["x"].equal(at::arange(6.F).view({2, 3})));

  // Not where the module has a tensor of that name.
  Box more({{"step", at::zeros({})}, {"x", at::zeros({2, 3})}});
  EXPECT_EQ(value_error([&] { load_weights(more, path_); }),
            "load_weights: path (" + path_ +
                ") must fit the module, 1 of whose 2 tensors do\n"
                "  misshapen: step (Float [] in the module, an integer in the file)");
  EXPECT_EQ(load_weights(more, path_, LoadOptions().strict(false)).passed_over.size(), 8);

  write_archive(
      pickle(dict(text("a.x") + kWhole + text("a.step") + integer(1) + text("step") + integer(2))));
  EXPECT_EQ(load_weights(box, path_, LoadOptions().prefix("a.")).passed_over,
            std::vector<std::string>({"step"}));
  EXPECT_EQ(pickle_error(dict(text("x") + integer(1) + text("x") + kWhole)),
            "must be a sound PyTorch file; \"x\" must be there once");
}

TEST_F(PytorchFile, WithWeightsInADictAsksWhich) {
  const auto part = dict(text("x") + kWhole);
  EXPECT_EQ(
      pickle_error(dict(text("rng") + kWhole + text("step") + integer(1) + text("model") + part)),
      "must hold a dict of tensors; \"model\" is a dict: options.key says which of \"rng\", "
      "\"step\", \"model\" to load");
  EXPECT_EQ(pickle_error(dict(text("step") + integer(1) + text("model") + dict(text("m") + part))),
            "must hold a dict of tensors; \"model\" is a dict: options.key says which of \"step\", "
            "\"model\" to load");
}

TEST_F(PytorchFile, WhoseTensorsReachOutsideIsRefused) {
  const auto error = [&](const std::string& tensor) {
    const auto message = pickle_error(dict(text("x") + tensor));
    const std::string start = "must be a sound PyTorch file; \"x\": ";
    EXPECT_EQ(message.substr(0, start.size()), start);
    return message.substr(std::min(start.size(), message.size()));
  };
  const auto place = [](const std::string& sizes, const std::string& strides, int offset) {
    return "sizes [" + sizes + "], strides [" + strides + "] and offset " + std::to_string(offset) +
           " must fit its storage of 6 elements";
  };
  EXPECT_EQ(error(tensor(integer(7), integer(1))), place("7", "1", 0));
  EXPECT_EQ(error(tensor(integer(6), integer(1), 1)), place("6", "1", 1));
  EXPECT_EQ(error(tensor("", "", 6)), place("", "", 6));
  EXPECT_EQ(error(tensor(integer(0), integer(1), 7)), place("0", "1", 7));
  EXPECT_EQ(error(tensor(integer(2), integer(6))), place("2", "6", 0));
  EXPECT_EQ(error(tensor(integer(2) + integer(2), integer(4) + integer(2))),
            place("2, 2", "4, 2", 0));
  EXPECT_EQ(error(tensor(integer(2), "")), place("2", "", 0));
  EXPECT_EQ(error(tensor(integer(INT32_MAX) + integer(INT32_MAX) + integer(INT32_MAX),
                         integer(0) + integer(0) + integer(0))),
            place("2147483647, 2147483647, 2147483647", "0, 0, 0", 0));
  EXPECT_EQ(error(tensor(integer(INT32_MAX), integer(0))),
            "sizes [2147483647] must not repeat elements so often");
  EXPECT_EQ(error(tensor(integer(-1), integer(1))), "its sizes must be integers of 0 or more");
  EXPECT_EQ(error(tensor(integer(2), integer(-1))), "its strides must be integers of 0 or more");
  EXPECT_EQ(error(tensor(integer(2), integer(1), -1)), "its offset must be integers of 0 or more");
  EXPECT_EQ(error(tensor("", "", 0, storage("FloatStorage", 7))),
            "storage \"0\" (24 bytes) must hold its 7 elements of 4 bytes");
  EXPECT_EQ(error(tensor("", "", 0, integer(1))), "it must have a storage");
  EXPECT_EQ(error(call(kRebuild, integer(1))),
            "torch._utils._rebuild_tensor_v2 must be given 4 arguments");
  write_archive(pickle(dict(text("x") + tensor("", "", 0, storage("FloatStorage", 6, "../0")))));
  EXPECT_EQ(load_error(), "must be a sound PyTorch file; it must hold a record \"data/../0\"");
}

/// A tensor of a dtype or kind that heed does not have is left out: the others load, and the report
/// names it.
TEST_F(PytorchFile, MayHoldATensorThatHeedCannot) {
  const auto v3 = [](const std::string& dtype) {
    return call(
        global("torch._utils", "_rebuild_tensor_v3"),
        storage("UntypedStorage", 24) + integer(0) + "))" + '\x89' + '}' + global("torch", dtype));
  };
  const std::map<std::string, std::string> kinds{
      {tensor("", "", 0, storage("QInt8Storage", 6)), "a tensor of \"torch.QInt8Storage\""},
      {v3("qint8"), "a tensor of \"torch.qint8\""},
      {call(kRebuild, storage("ComplexFloatStorage", 3) + integer(0) + ")))" + "}" +
                          dict(text("conj") + '\x88')),
       "a tensor whose resolve_conj() or resolve_neg() is put off"},
      {call(global("torch._utils", "_rebuild_device_tensor_from_numpy"), ""),  // a TPU's
       "a call of \"torch._utils._rebuild_device_tensor_from_numpy\", which is not run"}};
  for (const auto& [odd, what] : kinds) {
    write_archive(pickle(dict(text("x") + kWhole + text("odd") + odd)));
    Box box({{"x", at::zeros({2, 3})}});
    const auto start = "load_weights: path (" + path_ + ") must fit the module, 1 of whose ";
    EXPECT_EQ(value_error([&] { load_weights(box, path_); }),
              start + "1 tensors do\n  unexpected: odd (" + what + ")");
    const auto report = load_weights(box, path_, LoadOptions().strict(false));
    EXPECT_EQ(report.loaded, std::vector<std::string>({"x"}));
    EXPECT_EQ(report.unexpected, std::vector<std::string>({"odd"}));
    EXPECT_TRUE(box["x"].equal(at::arange(6.F).view({2, 3})));
    load_weights(box, path_, LoadOptions().name_map(NameMap().drop("odd")));
    const Warnings warnings;
    EXPECT_EQ(read_weights(path_).size(), 1U);
    EXPECT_EQ(warnings.messages(),
              std::vector<std::string>({"read_weights: path (" + path_ +
                                        "): left out 1 tensors that heed cannot hold: \"odd\" (" +
                                        what + ")"}));

    Box both({{"x", at::zeros({2, 3})}, {"y_odd", at::zeros({})}});
    const auto map = NameMap().rename("odd", "y_odd");
    EXPECT_EQ(value_error([&] { load_weights(both, path_, LoadOptions().name_map(map)); }),
              start + "2 tensors do\n  misshapen: y_odd (Float [] in the module, " + what +
                  " in the file: odd)");
    const auto packed = NameMap().pack({"odd", "x"}, "y_odd");
    const auto misfits = load_weights(both, path_, LoadOptions().name_map(packed).strict(false));
    EXPECT_EQ(misfits.missing, std::vector<std::string>({"y_odd"}));
    EXPECT_EQ(misfits.unexpected, std::vector<std::string>({"odd"}));
  }
}

TEST_F(PytorchFile, NamesTenTensorsThatCannotBeHeld) {
  const auto odd = call(global("torch._utils", "_rebuild_device_tensor_from_numpy"), "");
  const auto brackets_and_end = [&](int count) {
    std::string entries;
    for (int i = 0; i < count; ++i) entries += text("odd" + std::to_string(i)) + odd;
    write_archive(pickle(dict(text("x") + kWhole + entries)));
    const Warnings warnings;
    EXPECT_EQ(read_weights(path_).size(), 1U);
    const auto message = warnings.messages().at(0);
    return std::pair(std::count(message.begin(), message.end(), '('),
                     message.substr(message.size() - 5));
  };
  // One bracket before the path, and one behind each name.
  EXPECT_EQ(brackets_and_end(10), std::pair(std::ptrdiff_t{11}, std::string(" run)")));
  EXPECT_EQ(brackets_and_end(11), std::pair(std::ptrdiff_t{11}, std::string(", ...")));
}

TEST_F(PytorchFile, NamesTenOfTheNamesThatAFileHas) {
  const auto quotes_and_end = [&](int count) {
    std::string entries;
    for (int i = 0; i < count; ++i) entries += text("x" + std::to_string(i)) + kWhole;
    write_archive(pickle(dict(entries)));
    torch::nn::Linear layer(2, 3);
    const auto message =
        value_error([&] { load_weights(*layer, path_, LoadOptions().key("none")); });
    return std::pair(std::count(message.begin(), message.end(), '"'),
                     message.substr(message.size() - 4));
  };
  EXPECT_EQ(quotes_and_end(10), std::pair(std::ptrdiff_t{20}, std::string("\"x9\"")));
  EXPECT_EQ(quotes_and_end(11), std::pair(std::ptrdiff_t{20}, std::string(" ...")));
}

TEST_F(PytorchFile, WithoutNamesSaysHowToGiveThem) {
  EXPECT_EQ(pickle_error(kWhole),
            "must hold a dict of tensors; it holds a tensor: save a dict that gives it a name "
            "instead");
  const auto items = ": save a dict of its tensors by name instead";
  EXPECT_EQ(pickle_error("](" + kWhole + 'e'),
            "must hold a dict of tensors; it holds a list"s + items);
  EXPECT_EQ(pickle_error(tuple(kWhole)), "must hold a dict of tensors; it holds a tuple"s + items);
}

/// torch::pickle_save writes any value; heed reads dicts of tensors.
TEST_F(PytorchFile, OfPickleSaveIsReadWhereItIsADict) {
  c10::Dict<std::string, at::Tensor> named;
  named.insert("x", at::arange(6.F).view({2, 3}));
  const auto save = [&](const c10::IValue& value) {
    const auto bytes = torch::pickle_save(value);
    write({bytes.begin(), bytes.end()});
  };
  save(named);
  Box box({{"x", at::zeros({2, 3})}});
  load_weights(box, path_);
  EXPECT_TRUE(box["x"].equal(at::arange(6.F).view({2, 3})));
  save(at::ones({2}));
  EXPECT_NE(load_error().find("it holds a tensor: save a dict"), std::string::npos);
  save(std::vector<at::Tensor>{at::ones({2})});
  EXPECT_NE(load_error().find("it holds a list: save a dict"), std::string::npos);
}

TEST_F(PytorchFile, WhosePickleIsNotSoundIsRefused) {
  const auto sound = [](size_t byte) {
    return "must be a sound PyTorch file; data.pkl byte " + std::to_string(byte) + ": ";
  };
  EXPECT_EQ(pickle_error("i"), sound(2) + "opcode 0x69 must be one of protocols 2 to 5");
  EXPECT_EQ(pickle_error("\x80\x06"), sound(2) + "protocol (6) must be 2 to 5");
  EXPECT_EQ(pickle_error("0"), sound(2) + "the stack (0) must hold at least 1");
  EXPECT_EQ(pickle_error("N(\x85"), sound(4) + "the stack (0) must hold at least 1");
  EXPECT_EQ(pickle_error("t"), sound(2) + "opcode 0x74 must follow a MARK");
  EXPECT_EQ(pickle_error("Na"), sound(3) + "the stack (0) must hold at least 1");
  EXPECT_EQ(pickle_error("NNa"), sound(4) + "opcode 0x61 must follow an object");
  EXPECT_EQ(pickle_error("}(Nu"), sound(5) + "a dict's keys and values (1) must be pairs");
  EXPECT_EQ(pickle_error("h\5"), sound(2) + "memo index (5) must be below 0");
  EXPECT_EQ(pickle_error("Nr\xff\xff\xff\xff"),
            sound(3) + "memo index (4294967295) must be at most 0, the next one");
  EXPECT_EQ(pickle_error("X\xff\xff\xff\x7f"),
            sound(2) + "2147483647 bytes must follow; there are 1");
  EXPECT_EQ(pickle_error("\x8d\xff\xff\xff\xff\xff\xff\xff\xff"),
            sound(2) + "18446744073709551615 bytes must follow; there are 1");
  EXPECT_EQ(pickle_error("cposix"), sound(2) + "a name must end with a line feed");
  EXPECT_EQ(pickle_error("NNR"), sound(4) + "the arguments of opcode 0x52 must be a tuple");
  EXPECT_EQ(pickle_error("NN\x93"), sound(4) + "the names of opcode 0x93 must be strings");
  EXPECT_EQ(pickle_error("N.").substr(0, 28), "must hold a dict of tensors;");
  write_archive("\x80\x02N");
  EXPECT_EQ(load_error(), sound(3) + "1 bytes must follow; there are 0");
}

TEST_F(PytorchFile, ThatWouldTakeMuchMemoryIsRefused) {
  const std::string reason = "what it describes must not take";
  // Tuples in tuples: as deep as the file is long. Lists that hold themselves.
  EXPECT_NE(pickle_error(")" + std::string(4'000'000, '\x85')).find(reason), std::string::npos);
  EXPECT_EQ(pickle_error("]q"s + '\0' + "h"s + '\0' + "a"),
            "must hold a dict of tensors; it holds a list: save a dict of its tensors by name "
            "instead");
  EXPECT_NE(pickle_error(std::string(4'000'000, 'N')).find(reason), std::string::npos);
  EXPECT_NE(pickle_error(std::string(4'000'000, '}')).find(reason), std::string::npos);
  EXPECT_NE(pickle_error("N" + std::string(20'000'000, '\x94')).find(reason), std::string::npos);
}

TEST_F(PytorchFile, WithTwoTensorsOfOneNameIsRefused) {
  EXPECT_EQ(pickle_error(dict(text("x") + kWhole + text("x") + kWhole)),
            "must be a sound PyTorch file; \"x\" must be there once");
  EXPECT_EQ(pickle_error(dict(integer(1) + kWhole)),
            "must hold tensors by name; a name is an integer");
}

TEST_F(PytorchFile, WhoseArchiveIsNotSoundIsRefused) {
  const std::string sound = "must be a sound PyTorch file; ";
  write_archive(pickle(dict("")), {{"byteorder", "big"}});
  EXPECT_EQ(load_error(),
            sound + "byteorder (\"big\") must be little: save it on a machine of that order");
  write_archive(pickle(dict(text("x") + std::string(4000, 'N'))), {}, /*compress_all=*/true);
  EXPECT_NE(load_error().find("must be stored without compression"), std::string::npos);
}

template <typename Number>
Number number_at(const std::string& bytes, size_t at) {
  Number value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

/// The archive with a directory as files above 4 GB have it: sizes and places in fields of 64 bits,
/// each behind a field of `before` that says nothing.
std::string in_64_bits(const std::string& archive, const std::string& before) {
  const auto end = archive.rfind("PK\5\6"s);
  const auto count = number_at<uint16_t>(archive, end + 10);
  const auto begin = number_at<uint32_t>(archive, end + 16);
  std::string directory;
  size_t at = begin;
  for (int i = 0; i < count; ++i) {
    const auto name_size = number_at<uint16_t>(archive, at + 28);
    std::string values;
    for (const size_t place : {24, 20, 42}) {
      values += bytes_of<uint64_t>(number_at<uint32_t>(archive, at + place));
    }
    const auto extra =
        before + bytes_of<uint16_t>(1) + bytes_of(static_cast<uint16_t>(values.size())) + values;
    auto entry = archive.substr(at, 46);
    for (const size_t place : {20, 24, 42}) entry.replace(place, 4, "\xff\xff\xff\xff");
    entry.replace(30, 2, bytes_of(static_cast<uint16_t>(extra.size())));
    directory += entry + archive.substr(at + 46, name_size) + extra;
    at += 46 + name_size + number_at<uint16_t>(archive, at + 30);
  }
  return archive.substr(0, begin) + directory + "PK\5\6"s + bytes_of<uint32_t>(0) +
         bytes_of(count) + bytes_of(count) + bytes_of(static_cast<uint32_t>(directory.size())) +
         bytes_of(begin) + bytes_of<uint16_t>(0);
}

TEST_F(PytorchFile, IsReadWhereItsSizesAreIn64Bits) {
  const auto other = bytes_of<uint16_t>(2) + bytes_of<uint16_t>(3) + "abc";
  for (const auto& before : {""s, other, other + other}) {
    write_archive(pickle(dict(text("x") + kWhole)));
    write(in_64_bits(read_bytes(path_), before));
    Box box({{"x", at::zeros({2, 3})}});
    load_weights(box, path_);
    EXPECT_TRUE(box["x"].equal(at::arange(6.F).view({2, 3}))) << before.size();
  }
  // A field that says that it is longer than what is left of the entry.
  write_archive(pickle(dict("")));
  write(in_64_bits(read_bytes(path_), bytes_of<uint16_t>(2) + bytes_of<uint16_t>(0xffff)));
  EXPECT_NE(load_error().find("4294967295 bytes) must lie before the directory"),
            std::string::npos);
}

/// A module whose class is declared in the archive's code.
std::string script_module(const std::string& attributes) {
  return global("__torch__", "M") + ")\x81" + dict(attributes) + 'b';
}

TEST_F(PytorchFile, OfTorchScriptHoldsWhatItsCodeDeclares) {
  const std::string code =
      "class M(Module):\n  __parameters__ = [\"x\", \"none\", ]\n  __buffers__ = []\n";
  const auto module =
      script_module(text("x") + kWhole + text("none") + 'N' + text("other") + kWhole);
  write_archive(pickle(module), {{"code/__torch__.py", code}});
  Box box({{"x", at::zeros({2, 3})}});
  const auto report = load_weights(box, path_);
  EXPECT_EQ(report.loaded.size(), 1);
  EXPECT_EQ(report.passed_over, std::vector<std::string>({"other"}));
  EXPECT_TRUE(box["x"].equal(at::arange(6.F).view({2, 3})));
  EXPECT_EQ(value_error([&] { load_weights(box, path_, LoadOptions().key("model")); }),
            "load_weights: key (model) must be empty: path (" + path_ +
                ") is a TorchScript archive; options.prefix selects names");
  // A module that holds itself.
  write_archive(
      pickle(global("__torch__", "M") + ")\x81q"s + '\0' + dict(text("m") + "h"s + '\0') + 'b'),
      {{"code/__torch__.py", code}});
  EXPECT_NE(load_error().find("modules must not be nested deeper"), std::string::npos);
}

TEST_F(PytorchFile, CutOrChangedAnywhereIsReadOrRefused) {
  write_archive(pickle(dict(text("x") + kWhole)));
  const auto whole = read_bytes(path_);
  Box box({{"x", at::zeros({2, 3})}});
  load_weights(box, path_);
  for (size_t size = 0; size < whole.size(); size += 7) {
    write(whole.substr(0, size));
    EXPECT_NE(value_error([&] { load_weights(box, path_); }), "") << size;
  }
  int refused = 0;
  for (size_t bit = 0; bit < 8 * whole.size(); bit += 37) {
    auto changed = whole;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << (bit % 8)));
    write(changed);
    try {
      load_weights(box, path_);  // the numbers themselves have no wrong value
    } catch (const c10::ValueError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 10);
}

}  // namespace
}  // namespace heed::test::pytorch_file
