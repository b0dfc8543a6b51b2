// SPDX-License-Identifier: BSD-3-Clause
#include "sentence_piece_model.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <stdexcept>

#include "unicode.h"

namespace heed::examples::text {

namespace {

[[noreturn]] void refuse_damaged() {
  throw std::runtime_error("the file is not a whole model of SentencePiece");
}

uint64_t take_number(std::string_view& message) {
  uint64_t number = 0;
  for (uint32_t shift = 0; shift < 64; shift += 7) {
    if (message.empty()) break;
    const auto byte = static_cast<unsigned char>(message[0]);
    message.remove_prefix(1);
    number |= static_cast<uint64_t>(byte & 0x7FU) << shift;
    if (byte < 0x80) return number;
  }
  refuse_damaged();
}

std::string_view take_bytes(std::string_view& message, uint64_t size) {
  if (size > message.size()) refuse_damaged();
  const auto bytes = message.substr(0, size);
  message.remove_prefix(size);
  return bytes;
}

/// A field of a message: a number, or bytes.
struct Field {
  uint64_t number = 0;  // of the field
  uint64_t value = 0;
  std::string_view bytes;
};

void for_each_field(std::string_view message, const std::function<void(const Field&)>& use) {
  while (!message.empty()) {
    const auto tag = take_number(message);
    Field field{tag >> 3U, 0, {}};
    switch (tag & 7U) {
      case 0:
        field.value = take_number(message);
        break;
      case 1:
        field.bytes = take_bytes(message, 8);
        break;
      case 2:
        field.bytes = take_bytes(message, take_number(message));
        break;
      case 5:
        field.bytes = take_bytes(message, 4);
        break;
      default:
        refuse_damaged();
    }
    use(field);
  }
}

/// Little-endian, as it is in the file.
float float_of(std::string_view bytes) {
  if (bytes.size() != sizeof(float)) refuse_damaged();
  uint32_t bits = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    bits |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[i])) << (8U * i);
  }
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  if (!std::isfinite(value)) refuse_damaged();
  return value;
}

SentencePieceModel::Piece read_piece_of_model(std::string_view message) {
  constexpr uint64_t kUnknown = 2, kControl = 3, kUserDefined = 4;
  SentencePieceModel::Piece piece;
  for_each_field(message, [&piece](const Field& field) {
    if (field.number == 1) piece.text = field.bytes;
    if (field.number == 2) piece.score = float_of(field.bytes);
    if (field.number != 3) return;
    piece.is_unknown = field.value == kUnknown;
    piece.is_control = field.value == kControl;
    piece.is_user_defined = field.value == kUserDefined;
  });
  check_utf8(piece.text);
  return piece;
}

}  // namespace

SentencePieceModel read_sentence_piece_model(std::string_view bytes) {
  constexpr uint64_t kUnigram = 1, kBytePairEncoding = 2;
  SentencePieceModel model;
  const auto read_training = [&model](const Field& field) {
    if (field.number != 3) return;
    model.is_unigram = field.value == kUnigram;
    model.is_byte_pair_encoding = field.value == kBytePairEncoding;
  };
  const auto read_normalization = [&model](const Field& field) {
    if (field.number == 2) model.charsmap = field.bytes;
  };
  for_each_field(bytes, [&](const Field& field) {
    if (field.number == 1) model.pieces.push_back(read_piece_of_model(field.bytes));
    if (field.number == 2) for_each_field(field.bytes, read_training);
    if (field.number == 3) for_each_field(field.bytes, read_normalization);
  });
  if (model.pieces.empty()) refuse_damaged();
  return model;
}

}  // namespace heed::examples::text
