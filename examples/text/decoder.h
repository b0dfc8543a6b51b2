#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "json_fields.h"

namespace heed::examples::text {

/// Receives text piece by piece.
using OnPiece = std::function<void(std::string)>;

/// One step from tokens to text. It takes tokens one at a time, and holds back what later ones may
/// change.
class DecodingStep {
 public:
  DecodingStep() = default;
  DecodingStep(const DecodingStep&) = delete;
  DecodingStep& operator=(const DecodingStep&) = delete;
  virtual ~DecodingStep() = default;

  virtual void push(std::string token, const OnPiece& next) = 0;
  /// Passes on what is held back.
  virtual void finish(const OnPiece& /*next*/) {}
};

/// Makes the steps for one text.
using Decoder = std::vector<std::function<std::unique_ptr<DecodingStep>()>>;

/// From the field "decoder", which may be null. Throws std::runtime_error that names what is not
/// understood.
Decoder read_decoder(const Json* decoder);

}  // namespace heed::examples::text
