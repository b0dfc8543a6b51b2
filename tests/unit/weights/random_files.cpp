// SPDX-License-Identifier: BSD-3-Clause
#include "unit/weights/random_files.h"

#include <random>
#include <string>

#include "support/archives.h"

namespace heed::test {
namespace {

using namespace archives;

/// A file of torch.save or torch.jit.save.
class RandomPickle {
 public:
  explicit RandomPickle(uint32_t seed) : random_(seed) {}

  std::string file() {
    std::string root = text("w0") + kWhole + put(0) + text("l") + "](NNe" + put(1) + text("d") +
                       dict(text("x") + get(0)) + put(2) + text("g") + global("a", "b") + put(3);
    const auto kinds = 1 + random_() % 4;
    for (uint32_t kind = 0; kind < kinds; ++kind) root += many();
    const bool is_script = random_() % 2 == 0;
    const auto body = dict(root);
    if (!is_script) return archive_of(saved(pickle(body)));
    return script_archive(pickle(global("__torch__", "M") + ")\x81" + body + 'b'),
                          {{"code/__torch__.py", "class M(Module):\n  __parameters__ = [\"w0\"]\n" +
                                                     std::string(random_() % 60'000'000, 'x')}});
  }

 private:
  std::string value() {
    switch (random_() % 12) {
      case 0:
        return tensor(integer(2), integer(1));
      case 1:
        return tensor(integer(3), integer(1), 0, storage("BoolStorage", 24));
      case 2:
        return "](" + repeated(value_of_memo(), 10) + 'e';
      case 3:
        return tuple(repeated(value_of_memo(), 10));
      case 4:
        return call(value_of_memo(), "");
      case 5:
        return global("__torch__", "M") + ")\x81" + dict(text("x") + value_of_memo()) + 'b';
      case 6:
        return global("torch.jit._pickle", "restore_type_tag") + tuple(value_of_memo()) + 'R';
      case 7:
        return "N";
      default:
        return value_of_memo();
    }
  }

  std::string value_of_memo() { return get(static_cast<uint8_t>(random_() % 4)); }

  std::string repeated(const std::string& part, uint32_t most) {
    std::string whole;
    for (uint32_t i = 0, count = random_() % most; i < count; ++i) whole += part;
    return whole;
  }

  /// Entries of up to 4 MB, all of one kind.
  std::string many() {
    const auto one = value();
    const auto most = 4'000'000 / (one.size() + 8);
    std::string entries;
    for (size_t i = 0, count = random_() % most; i < count; ++i) {
      entries += name_of(next_++) + one;
    }
    return entries;
  }

  std::minstd_rand random_;
  int next_ = 1;
};

/// A header of a safetensors file, or of its index: entries that are drawn and repeated.
class RandomHeader {
 public:
  explicit RandomHeader(uint32_t seed) : random_(seed) {}

  std::string safetensors() {
    auto header = "{" + in_quotes("w0") + R"(:{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]})";
    data_ = 24;
    for (auto kinds = 1 + random_() % 4; kinds-- > 0;) header += entries(random_() % 8);
    header += random_() % 3 == 0 ? ",\"w0\":{}" : "";
    header += random_() % 3 == 0 ? std::string(random_() % 4'000'000, ' ') : "";
    header += random_() % 3 == 0 ? "" : "}";
    return with_size(header) + std::string(data_, '\1');
  }

  std::string index() {
    auto text = std::string("{");
    for (auto kinds = 1 + random_() % 4; kinds-- > 0;) text += beside(random_() % 4) + ',';
    text += "\"weight_map\":{\"w0\":\"shard\"";
    const auto name = random_() % 2 == 0 ? std::string("shard") : std::string("s") + kEscape;
    for (auto count = random_() % 330'000; count-- > 0;) {
      text += ",\"" + std::to_string(count) + "\":\"" + name + '"';
    }
    return text + (random_() % 3 == 0 ? "}" : "}}");
  }

 private:
  static constexpr auto kEscape = "\\u00e9\\ud83d\\ude00";

  std::string entries(uint32_t kind) {
    std::string text;
    for (auto count = random_() % (kind == 6 ? 12 : 40'000); count-- > 0;) {
      text += ',' + in_quotes(name(kind)) + ':' + value(kind);
    }
    return text;
  }

  std::string name(uint32_t kind) {
    auto number = std::to_string(next_++);
    if (kind == 5) return std::string(60, 'n') + number;
    if (kind == 4) return kEscape + number;
    return kind == 3 && next_ % 20'000 == 0 ? "__metadata__" : number;
  }

  std::string value(uint32_t kind) {
    const auto offsets = [&](uint64_t size) {
      const auto begin = std::to_string(data_);
      data_ += size;
      return R"(,"data_offsets":[)" + begin + ',' + std::to_string(data_) + "]}";
    };
    switch (kind) {
      case 0:
        return R"({"dtype":"BOOL","shape":[1])" + offsets(1);
      case 1:
        return R"({"dtype":"F4","shape":[1,2])" + offsets(1);
      case 2: {
        std::string shape = "0";
        for (int i = 0; i < 60; ++i) shape += ",9";
        return R"({"dtype":"F64","shape":[)" + shape + "]" + offsets(0);
      }
      case 6:
        return R"({"dtype":)" + in_quotes(std::string(300'000, 'F')) + R"(,"shape":[])" +
               offsets(random_() % 2);
      case 7:
        return next_ % 9'000 == 0 ? nested() : R"({"dtype":"I8","shape":[0])" + offsets(0);
      default:
        return R"({"shape":[0],"dtype":"F16")" + offsets(0);
    }
  }

  std::string nested() { return std::string(random_() % 3'000'000, random_() % 2 ? '[' : '9'); }

  /// A field that an index may have beside its map.
  std::string beside(uint32_t kind) {
    const auto name = in_quotes("b" + std::to_string(next_++)) + ':';
    const auto size = random_() % 3'000'000;
    if (kind == 0) return name + std::string(size, '[') + std::string(size, ']');
    if (kind == 1) return name + std::string(size, '9');
    if (kind == 2) return name + in_quotes(std::string(size, 'x'));
    std::string items = "0";
    for (uint32_t i = 0; i < size / 4; ++i) items += ",{}";
    return name + '[' + items + ']';
  }

  std::minstd_rand random_;
  int next_ = 1;
  uint64_t data_ = 0;
};

/// A program of torch.export or AOTInductor, or a zip archive, of parts that are drawn.
class RandomArchive {
 public:
  explicit RandomArchive(uint32_t seed) : random_(seed) {}

  std::string file() {
    auto weights = in_quotes("w0") + ':' +
                   weight_json("weight_0", number_json(2) + ',' + number_json(3),
                               number_json(3) + ',' + number_json(1));
    Records more;
    for (auto kinds = 1 + random_() % 3; kinds-- > 0;) weights += entries(random_() % 7, more);
    auto records = exported(weights, random_() % 3 == 0 ? weights : "");
    if (random_() % 4 == 0) records["models/other.json"];
    if (random_() % 4 == 0) compile(records);
    more.merge(records);
    for (auto count = random_() % 3 == 0 ? random_() % 60'000 : 0; count-- > 0;) {
      more[std::string(random_() % 60, 'r') + std::to_string(count)] =
          std::string(random_() % 9, 'x');
    }
    return zip_of(in_archive(more));
  }

 private:
  std::string entries(uint32_t kind, Records& more) {
    const auto one = value(kind, more);
    std::string text;
    const auto most = 3'000'000 / (one.size() + 12) + 1;
    for (auto count = random_() % most; count-- > 0;) {
      text += ",\"w" + std::to_string(next_++) + "\":" + (kind == 1 ? value(1, more) : one);
    }
    return text;
  }

  std::string value(uint32_t kind, Records& more) {
    switch (kind) {
      case 0:
        return weight_json("weight_0", "1", "1");
      case 1: {
        const auto record = "p" + std::to_string(next_);
        more["data/weights/" + record] = tensor_file_;
        return weight_json(record, "", "", /*pickled=*/true);
      }
      case 2: {
        std::string ones = "1";
        for (int i = 0; i < 63; ++i) ones += ",1";
        return weight_json("weight_0", ones, ones);
      }
      case 3:
        return weight_json("weight_0", "1000000,6", "0,1");
      case 4:
        return std::string(random_() % 3'000'000, '[');
      case 5:
        return weight_json(std::string(random_() % 300'000, 'w'), "1", "1");
      default:
        return "{\"path_name\":\"opaque\",\"use_pickle\":true,\"x\":[" + many_zeros() + "]}";
    }
  }

  std::string many_zeros() {
    std::string zeros = "0";
    for (auto count = random_() % 400'000; count-- > 0;) zeros += ",0";
    return zeros;
  }

  void compile(Records& records) {
    records.erase("models/model.json");
    std::string config = R"({"w0":["p0",[2,3],[3,1],0])";
    for (auto count = random_() % 100'000; count-- > 0;) {
      config += ",\"c" + std::to_string(count) + R"(":["p0",[6],[1],0])";
    }
    records["data/aotinductor/model/weights_config.json"] = config + '}';
    records["data/weights/p0"] = tensor_file_;
  }

  const std::string tensor_file_ = zip_of(in_archive(saved(pickle(kWhole))));
  std::minstd_rand random_;
  int next_ = 1;
};

}  // namespace

std::string random_pytorch_file(uint32_t seed) { return RandomPickle(seed).file(); }
std::string random_safetensors(uint32_t seed) { return RandomHeader(seed).safetensors(); }
std::string random_index(uint32_t seed) { return RandomHeader(seed).index(); }
std::string random_archive(uint32_t seed) { return RandomArchive(seed).file(); }

}  // namespace heed::test
