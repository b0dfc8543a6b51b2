// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/decoder.h>
#include <heed/encoder_decoder.h>
#include <heed/image_encoder.h>
#include <heed/name_maps.h>
#include <heed/task_heads.h>
#include <heed/text_encoder.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>

namespace heed::detail {

/// The task that a model is made for.
enum class Task {
  own,  // that of its family: scores of the next token, or hidden states
  encode_texts,
  encode_images,
  classify_sequences,
  classify_tokens,
  fill_masks,
};

/// A model that a config.json describes beside others, which heed leaves out; and how a folder of
/// its own describes it.
struct ModelPart {
  std::string field;              // of the config.json: the object with the model's fields
  std::string model_type;         // in a folder of its own
  std::optional<bool> tied_head;  // the model's tie_word_embeddings, which is not in the object
  NameMap names;                  // of the model's weights in a folder of its own
  std::string architecture = {};  // in a folder of its own, if the object has none
  std::map<std::string, int64_t> sizes = {};  // further fields of a folder of its own
};

/// The head of an EncoderDecoder that shares the embedding unless the file has other values for it,
/// whatever config.json says.
struct FreeHead {
  std::string head, embedding;  // tensors of the file
};

/// A model as a config.json describes it.
struct Blueprint {
  std::variant<DecoderOptions, TextEncoderOptions, ImageEncoderOptions, SequenceClassifierOptions,
               TokenClassifierOptions, MaskedLanguageModelOptions, EncoderDecoderOptions>
      options;
  NameMap names;  // of the model's weights
  // The start of all names but the head's, which files of a model without a head lack.
  std::string prefix = "model.";
  std::string architecture = {};  // the first of architectures, such as "LlamaForCausalLM"
  std::optional<ModelPart> part = std::nullopt;  // none if the model is described alone
  std::optional<FreeHead> free_head = std::nullopt;
  // The tensor of an EncoderDecoder's score_bias, which a file may leave out; empty if there is
  // none.
  std::string score_bias = {};
};

/// Reads a config.json, whose model_type may be given if the file leaves it out. If the family has
/// no head or no tower for the task, the blueprint is that of `Task::own`: of an encoder of texts
/// and one of images, the former. Throws c10::ValueError that names
/// its path, the field and its value where one is not understood.
Blueprint read_blueprint(const std::string& config_path, Task task = Task::own,
                         const std::optional<std::string>& model_type = std::nullopt);

}  // namespace heed::detail
