// SPDX-License-Identifier: BSD-3-Clause
#include "weights/formats/pickle.h"

#include <cstring>

#include "core/error.h"
#include "weights/formats/pickle_opcodes.h"

#define HEED_CHECK_PICKLE(condition, text, ...)                                                 \
  HEED_CHECK(condition, "{} must be a sound PyTorch file; {} byte {}: " text, source_, record_, \
             opcode_at_, __VA_ARGS__)

namespace heed::detail {

namespace {

using Kind = PickleObject::Kind;

constexpr size_t kGrowth = 3;  // a vector that doubles holds the old elements and twice as many

/// Thrown where the bytes end before the pickle does, if more bytes may follow.
struct CutShort {};

}  // namespace

/// The stack machine that a pickle is a program for.
class Pickle::Machine {
 public:
  Machine(const std::string& source, const std::string& record, std::string_view bytes,
          size_t most_memory, bool may_go_on, std::deque<PickleObject>& objects)
      : source_(source),
        record_(record),
        bytes_(bytes),
        memory_left_(most_memory),
        may_go_on_(may_go_on),
        objects_(objects) {}

  size_t at() const { return at_; }

  PickleValue run() {
    while (true) {
      opcode_at_ = at_;
      const auto code = static_cast<PickleOpcode>(take(1)[0]);
      if (code == PickleOpcode::stop) break;
      const bool known = header(code) || scalar(code) || text(code) || tuples(code) ||
                         containers(code) || memo(code) || calls(code);
      HEED_CHECK_PICKLE(known, "opcode {:#04x} must be one of protocols 2 to 5", opcode());
    }
    return pop_value();
  }

 private:
  bool header(PickleOpcode code) {
    switch (code) {
      case PickleOpcode::proto: {
        const auto protocol = number<uint8_t>();
        HEED_CHECK_PICKLE(protocol >= 2 && protocol <= 5, "protocol ({}) must be 2 to 5", protocol);
        return true;
      }
      case PickleOpcode::frame:
        take(8);  // a hint for readers of streams
        return true;
      case PickleOpcode::mark:
        spend(sizeof(size_t));
        marks_.push_back(stack_.size());
        return true;
      case PickleOpcode::pop:
        pop_value();
        return true;
      case PickleOpcode::pop_mark:
        pop_marked();
        return true;
      default:
        return false;
    }
  }

  bool scalar(PickleOpcode code) {
    switch (code) {
      case PickleOpcode::none:
        return push(std::monostate());
      case PickleOpcode::newtrue:
        return push(true);
      case PickleOpcode::newfalse:
        return push(false);
      case PickleOpcode::binint:
        return push(int64_t{number<int32_t>()});
      case PickleOpcode::binint1:
        return push(int64_t{number<uint8_t>()});
      case PickleOpcode::binint2:
        return push(int64_t{number<uint16_t>()});
      case PickleOpcode::long1:
        return push(integer(take(number<uint8_t>())));
      case PickleOpcode::long4:
        return push(integer(take(number<uint32_t>())));
      case PickleOpcode::binfloat:
        return push(big_endian_double());
      default:
        return false;
    }
  }

  bool text(PickleOpcode code) {
    switch (code) {
      case PickleOpcode::short_binstring:
      case PickleOpcode::short_binunicode:
      case PickleOpcode::short_binbytes:
        return push(take(number<uint8_t>()));
      case PickleOpcode::binstring:
      case PickleOpcode::binunicode:
      case PickleOpcode::binbytes:
        return push(take(number<uint32_t>()));
      case PickleOpcode::binunicode8:
      case PickleOpcode::binbytes8:
      case PickleOpcode::bytearray8:
        return push(take(number<uint64_t>()));
      default:
        return false;
    }
  }

  bool tuples(PickleOpcode code) {
    switch (code) {
      case PickleOpcode::empty_tuple:
        return push(make(Kind::tuple));
      case PickleOpcode::tuple1:
        return push(make(Kind::tuple, pop_values(1)));
      case PickleOpcode::tuple2:
        return push(make(Kind::tuple, pop_values(2)));
      case PickleOpcode::tuple3:
        return push(make(Kind::tuple, pop_values(3)));
      case PickleOpcode::tuple:
        return push(make(Kind::tuple, pop_marked()));
      case PickleOpcode::frozenset:
        return push(make(Kind::list, pop_marked()));
      default:
        return false;
    }
  }

  bool containers(PickleOpcode code) {
    switch (code) {
      case PickleOpcode::empty_list:
      case PickleOpcode::empty_set:
        return push(make(Kind::list));
      case PickleOpcode::empty_dict:
        return push(make(Kind::dict));
      case PickleOpcode::append:
        return add_items(pop_values(1));
      case PickleOpcode::appends:
      case PickleOpcode::additems:
        return add_items(pop_marked());
      case PickleOpcode::setitem:
        return add_entries(pop_values(2));
      case PickleOpcode::setitems:
        return add_entries(pop_marked());
      default:
        return false;
    }
  }

  bool memo(PickleOpcode code) {
    switch (code) {
      case PickleOpcode::binput:
        return remember(number<uint8_t>());
      case PickleOpcode::long_binput:
        return remember(number<uint32_t>());
      case PickleOpcode::memoize:
        return remember(memo_.size());
      case PickleOpcode::binget:
        return recall(number<uint8_t>());
      case PickleOpcode::long_binget:
        return recall(number<uint32_t>());
      default:
        return false;
    }
  }

  bool calls(PickleOpcode code) {
    switch (code) {
      case PickleOpcode::global: {
        const auto module = take_line();
        return push_global(module, take_line());
      }
      case PickleOpcode::stack_global: {
        const auto names = pop_values(2);
        return push_global(text_of(names[0]), text_of(names[1]));
      }
      case PickleOpcode::reduce:
      case PickleOpcode::newobj: {
        const auto values = pop_values(2);
        return push_call(values[0], values[1]);
      }
      case PickleOpcode::newobj_ex: {
        const auto values = pop_values(3);
        return push_call(values[0], values[1]);
      }
      case PickleOpcode::build: {
        const auto state = pop_value();
        auto& object = top_object();
        // The state of a dict holds the attributes of an OrderedDict, which weights do not use.
        if (object.kind == Kind::call) object.state = state;
        return true;
      }
      case PickleOpcode::binpersid:
        return push(make(Kind::persistent, pop_values(1)));
      default:
        return false;
    }
  }

  bool push(PickleValue value) {
    if (stack_.size() == stack_.capacity()) {
      spend(kGrowth * (stack_.size() + 1) * sizeof(PickleValue));
    }
    stack_.push_back(value);
    return true;
  }

  /// Throws unless `count` values can be taken from the stack: those above the topmost MARK, or
  /// any if there is none.
  void check_height(size_t count) const {
    const auto floor = marks_.empty() ? 0 : marks_.back();
    HEED_CHECK_PICKLE(stack_.size() >= floor + count, "the stack ({}) must hold at least {}",
                      stack_.size() - floor, count);
  }

  PickleValue pop_value() {
    check_height(1);
    const auto value = stack_.back();
    stack_.pop_back();
    return value;
  }

  std::vector<PickleValue> pop_values(size_t count) {
    check_height(count);
    spend(count * sizeof(PickleValue));
    const auto first = stack_.end() - static_cast<std::ptrdiff_t>(count);
    std::vector<PickleValue> values(first, stack_.end());
    stack_.erase(first, stack_.end());
    return values;
  }

  std::vector<PickleValue> pop_marked() {
    HEED_CHECK_PICKLE(!marks_.empty(), "opcode {:#04x} must follow a MARK", opcode());
    const auto count = stack_.size() - marks_.back();
    auto values = pop_values(count);
    marks_.pop_back();
    return values;
  }

  PickleObject* make(Kind kind, std::vector<PickleValue> items = {}) {
    spend(sizeof(PickleObject));
    auto& object = objects_.emplace_back();
    object.kind = kind;
    object.items = std::move(items);
    return &object;
  }

  /// The object on top of the stack, to which an opcode adds something.
  PickleObject& top_object() {
    check_height(1);
    auto* const* object = std::get_if<PickleObject*>(&stack_.back());
    HEED_CHECK_PICKLE(object != nullptr, "opcode {:#04x} must follow an object", opcode());
    return **object;
  }

  bool add_items(const std::vector<PickleValue>& values) {
    auto& items = top_object().items;
    spend(kGrowth * values.size() * sizeof(PickleValue));
    items.insert(items.end(), values.begin(), values.end());
    return true;
  }

  bool add_entries(const std::vector<PickleValue>& values) {
    HEED_CHECK_PICKLE(values.size() % 2 == 0, "a dict's keys and values ({}) must be pairs",
                      values.size());
    auto& entries = top_object().entries;
    spend(kGrowth * values.size() * sizeof(PickleValue));
    for (size_t i = 0; i < values.size(); i += 2) entries.emplace_back(values[i], values[i + 1]);
    return true;
  }

  bool remember(size_t index) {
    check_height(1);
    HEED_CHECK_PICKLE(index <= memo_.size(), "memo index ({}) must be at most {}, the next one",
                      index, memo_.size());
    spend(sizeof(PickleValue));
    if (index == memo_.size()) memo_.emplace_back();
    memo_[index] = stack_.back();
    return true;
  }

  bool recall(size_t index) {
    HEED_CHECK_PICKLE(index < memo_.size(), "memo index ({}) must be below {}", index,
                      memo_.size());
    return push(memo_[index]);
  }

  bool push_global(std::string_view module, std::string_view name) {
    spend(module.size() + name.size() + 1);
    auto* object = make(Kind::global);
    object->name = fmt::format("{}.{}", module, name);
    return push(object);
  }

  bool push_call(const PickleValue& callee, const PickleValue& arguments) {
    auto* const* tuple = std::get_if<PickleObject*>(&arguments);
    HEED_CHECK_PICKLE(tuple != nullptr && (*tuple)->kind == Kind::tuple,
                      "the arguments of opcode {:#04x} must be a tuple", opcode());
    auto* const* global = std::get_if<PickleObject*>(&callee);
    const bool named = global != nullptr && (*global)->kind == Kind::global;
    if (named && (*global)->name == "collections.OrderedDict" && (*tuple)->items.empty()) {
      return push(make(Kind::dict));
    }
    spend((*tuple)->items.size() * sizeof(PickleValue));
    auto* object = make(Kind::call, (*tuple)->items);
    object->callee = callee;
    return push(object);
  }

  std::string_view take(uint64_t count) {
    if (may_go_on_ && count > bytes_.size() - at_) throw CutShort();
    HEED_CHECK_PICKLE(count <= bytes_.size() - at_, "{} bytes must follow; there are {}", count,
                      bytes_.size() - at_);
    const auto taken = bytes_.substr(at_, count);
    at_ += count;
    return taken;
  }

  std::string_view take_line() {
    const auto end = bytes_.find('\n', at_);
    if (may_go_on_ && end == std::string_view::npos) throw CutShort();
    HEED_CHECK_PICKLE(end != std::string_view::npos, "{} must end with a line feed", "a name");
    const auto line = take(end - at_);
    ++at_;
    return line;
  }

  /// Reads a little-endian number; the machines that LibTorch runs on are little-endian too.
  template <typename Number>
  Number number() {
    Number value = 0;
    const auto bytes = take(sizeof(Number));
    std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }

  double big_endian_double() {
    auto bytes = take(sizeof(double));
    char reversed[sizeof(double)];
    for (size_t i = 0; i < sizeof(double); ++i) reversed[i] = bytes[sizeof(double) - 1 - i];
    double value = 0;
    std::memcpy(&value, reversed, sizeof(double));
    return value;
  }

  /// Reads a little-endian integer in two's complement, of any length.
  PickleValue integer(std::string_view bytes) {
    if (bytes.size() > sizeof(int64_t)) return make(Kind::number);
    const bool negative = !bytes.empty() && static_cast<int8_t>(bytes.back()) < 0;
    int64_t value = negative ? -1 : 0;
    std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }

  std::string_view text_of(const PickleValue& value) const {
    const auto* text = std::get_if<std::string_view>(&value);
    HEED_CHECK_PICKLE(text != nullptr, "the names of opcode {:#04x} must be strings", opcode());
    return *text;
  }

  uint8_t opcode() const { return static_cast<uint8_t>(bytes_[opcode_at_]); }

  void spend(size_t memory) {
    HEED_CHECK_PICKLE(memory <= memory_left_, "what it describes must not take {} bytes more",
                      memory);
    memory_left_ -= memory;
  }

  const std::string& source_;
  const std::string& record_;
  std::string_view bytes_;
  size_t at_ = 0;
  size_t opcode_at_ = 0;
  size_t memory_left_;
  bool may_go_on_;  // more bytes may follow
  std::deque<PickleObject>& objects_;
  std::vector<PickleValue> stack_;
  std::deque<size_t> marks_;  // the stack's heights
  std::deque<PickleValue> memo_;
};

Pickle::Pickle(const std::string& source, const std::string& record, std::string_view bytes,
               size_t most_memory) {
  Machine machine(source, record, bytes, most_memory, /*may_go_on=*/false, objects_);
  root_ = machine.run();
  size_ = machine.at();
}

std::optional<Pickle> Pickle::beginning(const std::string& source, const std::string& record,
                                        std::string_view bytes, size_t most_memory) {
  Pickle pickle;
  Machine machine(source, record, bytes, most_memory, /*may_go_on=*/true, pickle.objects_);
  try {
    pickle.root_ = machine.run();
  } catch (const CutShort&) {
    return std::nullopt;
  }
  pickle.size_ = machine.at();
  return pickle;
}

}  // namespace heed::detail
