// SPDX-License-Identifier: BSD-3-Clause
#include <heed/pretrained.h>
#include <heed/weights.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

#include "core/error.h"
#include "models/pretrained/blueprint.h"
#include "models/pretrained/folders.h"
#include "models/pretrained/heads.h"
#include "models/weight_packer.h"
#include "modules/layers/lora_linear.h"
#include "modules/layers/packable.h"
#include "modules/layers/parameters.h"
#include "weights/formats/atomic_file.h"
#include "weights/formats/bytes.h"
#include "weights/formats/equal_values.h"
#include "weights/formats/libtorch_error.h"
#include "weights/formats/other_files.h"
#include "weights/formats/pytorch_dtypes.h"
#include "weights/formats/weight_file.h"
#include "weights/misfits.h"
#include "weights/named.h"
#include "weights/shards.h"

namespace heed {

namespace {

using detail::Blueprint;
using detail::FileEntries;
using detail::Task;

/// A class of models: its options, its name in errors, its task, and the end of its architecture,
/// empty if it is read from any.
template <typename Model>
struct Kind;

template <>
struct Kind<Decoder> {
  using Options = DecoderOptions;
  static constexpr auto kName = "a Decoder";
  static constexpr auto kTask = Task::own;
  static constexpr auto kEnd = "";
};

template <>
struct Kind<TextEncoder> {
  using Options = TextEncoderOptions;
  static constexpr auto kName = "a TextEncoder";
  static constexpr auto kTask = Task::encode_texts;
  static constexpr auto kEnd = "";
};

template <>
struct Kind<ImageEncoder> {
  using Options = ImageEncoderOptions;
  static constexpr auto kName = "an ImageEncoder";
  static constexpr auto kTask = Task::encode_images;
  static constexpr auto kEnd = "";
};

template <>
struct Kind<SequenceClassifier> {
  using Options = SequenceClassifierOptions;
  static constexpr auto kName = "a SequenceClassifier";
  static constexpr auto kTask = Task::classify_sequences;
  static constexpr auto kEnd = "ForSequenceClassification";
};

template <>
struct Kind<TokenClassifier> {
  using Options = TokenClassifierOptions;
  static constexpr auto kName = "a TokenClassifier";
  static constexpr auto kTask = Task::classify_tokens;
  static constexpr auto kEnd = "ForTokenClassification";
};

template <>
struct Kind<MaskedLanguageModel> {
  using Options = MaskedLanguageModelOptions;
  static constexpr auto kName = "a MaskedLanguageModel";
  static constexpr auto kTask = Task::fill_masks;
  static constexpr auto kEnd = "ForMaskedLM";
};

template <>
struct Kind<EncoderDecoder> {
  using Options = EncoderDecoderOptions;
  static constexpr auto kName = "an EncoderDecoder";
  static constexpr auto kTask = Task::own;
  static constexpr auto kEnd = "";
};

std::string kind_of(const Blueprint& blueprint) {
  constexpr const char* kKinds[] = {Kind<Decoder>::kName,         Kind<TextEncoder>::kName,
                                    Kind<ImageEncoder>::kName,    Kind<SequenceClassifier>::kName,
                                    Kind<TokenClassifier>::kName, Kind<MaskedLanguageModel>::kName,
                                    Kind<EncoderDecoder>::kName};
  return kKinds[blueprint.options.index()];
}

/// Reads a config.json, which must describe a `Model`.
template <typename Model>
Blueprint read_blueprint_of(const std::string& config,
                            const std::optional<std::string>& model_type = std::nullopt) {
  auto blueprint = detail::read_blueprint(config, Kind<Model>::kTask, model_type);
  HEED_CHECK(std::holds_alternative<typename Kind<Model>::Options>(blueprint.options),
             "{} must describe {}; it describes {}", config, Kind<Model>::kName,
             kind_of(blueprint));
  return blueprint;
}

/// Throws if the weights beside config.json are, by its architectures, those of another head: heads
/// for different tasks may have the same names and shapes.
template <typename Model>
void check_architecture(const Blueprint& blueprint, const std::string& config) {
  const std::string& name = blueprint.architecture;
  // A pretrained BERT has another head beside that of a MaskedLanguageModel.
  const bool fits =
      name.empty() || detail::ends_with(name, Kind<Model>::kEnd) ||
      (Kind<Model>::kTask == Task::fill_masks && detail::ends_with(name, "ForPreTraining"));
  HEED_CHECK(fits, "{}: architectures ({}) must end in {} for {}", config, name, Kind<Model>::kEnd,
             Kind<Model>::kName);
}

/// Makes a model. Errors of the modules' own checks name config.json, too.
template <typename Model>
Model make(const Blueprint& blueprint, const std::string& config) {
  try {
    return Model(std::get<typename Kind<Model>::Options>(blueprint.options));
  } catch (const c10::ValueError& error) {
    HEED_CHECK(false, "{}: {}", config, error.what_without_backtrace());
  } catch (const c10::Error& error) {  // too little memory, or sizes that overflow
    HEED_CHECK(false, "{}: {}", config, detail::first_sentence(error.what_without_backtrace()));
  }
}

/// Makes a model with names and shapes alone, which takes no memory.
template <typename Model>
Model make_skeleton(const Blueprint& blueprint, const std::string& config, at::ScalarType dtype) {
  const detail::UninitializedParameters shapes(at::dtype(dtype), /*shapes_alone=*/true);
  return make<Model>(blueprint, config);
}

/// Describes weights that do not fit the model of config.json; empty if all fit. The name map is
/// made of config.json too, so a name or size that is wrong in it is a misfit.
std::string misfits(const torch::nn::Module& skeleton, const std::string& config,
                    const FileEntries& file, const LoadOptions& options) {
  try {
    return detail::misfits(skeleton, file, options);
  } catch (const c10::ValueError&) {
    throw;
  } catch (const c10::Error& error) {  // sizes that overflow
    HEED_CHECK(false, "{}: {}", config, detail::first_sentence(error.what_without_backtrace()));
  }
}

std::string find_weights(const std::string& folder) {
  const auto path = detail::weights_in(folder);
  HEED_CHECK(path,
             "folder ({}) must have model.safetensors, model.safetensors.index.json, "
             "pytorch_model.bin or pytorch_model.bin.index.json",
             folder);
  return *path;
}

/// The name map for a file. A file of packed weights has heed's names.
NameMap names_of(const Blueprint& blueprint, const FileEntries& file) {
  return file.packed.empty() ? blueprint.names : NameMap();
}

/// Whether a name of the file begins with a text.
bool has_prefix(const FileEntries& file, const std::string& prefix) {
  return std::any_of(file.tensors.begin(), file.tensors.end(),
                     [&](const auto& tensor) { return tensor.first.rfind(prefix, 0) == 0; });
}

/// Makes the blueprint of a decoder one without a head if the options or the file say so, and its
/// names those of the file, which may lack their prefix. `head` as in PretrainedOptions.
void fit_head(Blueprint& blueprint, const FileEntries& file, std::optional<bool> head) {
  const auto& prefix = blueprint.prefix;
  const bool lacks_prefix = !prefix.empty() && !has_prefix(file, prefix);
  const bool has_head = !lacks_prefix || !detail::is_without_head(blueprint.architecture);
  if (!head.value_or(has_head)) detail::remove_head(blueprint);
  if (lacks_prefix) blueprint.names = detail::without_prefix(blueprint.names, prefix);
}

/// Unties the head of a decoder if it differs from the embedding in the file. transformers does
/// this, with a warning.
void untie_head(Blueprint& blueprint, const std::string& config, const FileEntries& file) {
  auto& options = std::get<DecoderOptions>(blueprint.options);
  if (!options.head() || !options.tied_head()) return;
  const auto skeleton = make_skeleton<Decoder>(blueprint, config, at::kFloat);
  const auto load = LoadOptions().name_map(names_of(blueprint, file));
  if (!detail::has_unequal_ties(*skeleton, file, load)) return;
  TORCH_WARN("load_pretrained: ", config, ": tie_word_embeddings does not fit ", source_of(file),
             ", whose head is not the embedding: the model keeps both");
  options.tied_head(false);
}

/// Makes the scores of an EncoderDecoder have a bias or not, and its names have a prefix or not, as
/// the file has them: that of a model without a head has neither.
void fit_scores(Blueprint& blueprint, const FileEntries& file) {
  const bool is_packed = !file.packed.empty();
  const auto &prefix = blueprint.prefix, &bias = blueprint.score_bias;
  auto& decoder = std::get<EncoderDecoderOptions>(blueprint.options).decoder();
  if (!bias.empty()) {
    decoder.score_bias(file.tensors.count(is_packed ? "decoder.score_bias" : bias) > 0);
  }
  const bool lacks_prefix = !prefix.empty() && !is_packed && !has_prefix(file, prefix);
  if (lacks_prefix) blueprint.names = detail::without_prefix(blueprint.names, prefix);
}

/// Makes the head of an EncoderDecoder tied or not, as the file has it.
void fit_free_head(Blueprint& blueprint, const FileEntries& file) {
  if (!blueprint.free_head) return;
  const auto& [head, embedding] = *blueprint.free_head;
  const auto own = file.tensors.find(file.packed.empty() ? head : "decoder.head.weight");
  const auto shared = file.tensors.find(embedding);
  const bool is_tied =
      own == file.tensors.end() ||
      (shared != file.tensors.end() && detail::have_equal_values(own->second, shared->second));
  std::get<EncoderDecoderOptions>(blueprint.options).decoder().tied_head(is_tied);
}

/// Advice for a file that does not fit a Decoder because it has no head; empty for others.
std::string head_advice(Blueprint blueprint, const std::string& config, const FileEntries& file,
                        at::ScalarType dtype) {
  const auto& heads = detail::names_of_heads();
  const auto* options = std::get_if<DecoderOptions>(&blueprint.options);
  const bool may_lack_head = options != nullptr && options->head() &&
                             std::none_of(heads.begin(), heads.end(), [&](const auto& name) {
                               return has_prefix(file, name + ".");
                             });
  if (!may_lack_head) return "";
  detail::remove_head(blueprint);
  const auto skeleton = make_skeleton<Decoder>(blueprint, config, dtype);
  const auto load = LoadOptions().name_map(names_of(blueprint, file)).dtype(dtype);
  if (!misfits(*skeleton, config, file, load).empty()) return "";
  return "\n  PretrainedOptions that may help: head(false), for hidden states instead of scores";
}

/// The only dtype of the file's floating-point tensors that the model takes; throws if there are
/// several. If the file's names do not fit, returns any dtype: a later check reports that.
template <typename Model>
at::ScalarType dtype_of(const Blueprint& blueprint, const std::string& config,
                        const std::string& path, const FileEntries& file) {
  const auto skeleton = make_skeleton<Model>(blueprint, config, at::kFloat);
  std::set<at::ScalarType> dtypes;
  try {
    dtypes =
        detail::floating_dtypes(*skeleton, file, LoadOptions().name_map(names_of(blueprint, file)));
  } catch (const c10::Error&) {
    return at::kFloat;
  }
  if (dtypes.empty()) return at::kFloat;
  std::string names;
  for (const auto dtype : dtypes) {
    names += (names.empty() ? "" : ", ") + std::string(c10::toString(dtype));
  }
  HEED_CHECK(dtypes.size() == 1, "dtype must be given: the tensors of {} have {}", path, names);
  return *dtypes.begin();
}

/// The options of a module and its submodules as text, without those that only change training.
std::string described(const torch::nn::Module& model) {
  static const std::regex training(
      "(, )?(feed_forward_dropout|final_dropout|dropout|checkpointing)=[^,)]*");
  std::ostringstream text;
  for (const auto& module : model.modules()) {
    module->pretty_print(text);
    text << '\n';
  }
  return std::regex_replace(text.str(), training, "");
}

/// The fields of a config.json or, if it describes the model beside others, those of a folder of
/// the model's own.
nlohmann::ordered_json own_fields(const std::string& config, const Blueprint& blueprint) {
  const detail::Bytes bytes(config);
  auto fields = nlohmann::ordered_json::parse(bytes.text(0, bytes.size()));
  const auto& part = blueprint.part;
  if (!part) return fields;
  auto own = fields.contains(part->field) ? fields[part->field] : nlohmann::ordered_json();
  own["model_type"] = part->model_type;
  if (part->tied_head) own["tie_word_embeddings"] = *part->tied_head;
  if (!part->architecture.empty()) {
    own["architectures"] = nlohmann::ordered_json::array({part->architecture});
  }
  for (const auto& [name, size] : part->sizes) own[name] = size;
  return own;
}

/// Throws if a model would be saved in place of the others that its config.json describes.
void check_keeps_others(const std::string& folder, const std::string& config,
                        const Blueprint& blueprint) {
  if (!blueprint.part) return;
  std::error_code error;  // where there is no such file, it is another one
  const bool is_source = std::filesystem::equivalent(folder + "/config.json", config, error);
  HEED_CHECK(error || !is_source,
             "folder ({}) must be another folder than that of {}, which describes other models too",
             folder, config);
}

/// The names of a saved model's weights. Packed weights have heed's names.
NameMap saved_names(const torch::nn::Module& model, const Blueprint& blueprint) {
  if (detail::has_packed_weights(model)) return {};
  return blueprint.part ? blueprint.part->names : blueprint.names;
}

/// Unties the head in the blueprint of a model whose head has been untied. Returns whether it has.
template <typename Model>
bool untie_saved(const Model& model, Blueprint& blueprint) {
  if constexpr (std::is_same_v<Model, Decoder>) {
    auto& options = std::get<DecoderOptions>(blueprint.options);
    const bool is_untied =
        model->options.head() && !model->options.tied_head() && options.tied_head();
    if (is_untied) options.tied_head(false);
    return is_untied;
  }
  return false;
}

/// The text of a saved model's config.json, with its dtype, its untied head and, unless `end` is
/// empty, another end of its architecture.
std::string saved_config(const std::string& config, const Blueprint& blueprint,
                         at::ScalarType dtype, std::string_view end, bool is_untied) {
  auto fields = own_fields(config, blueprint);
  if (is_untied) fields["tie_word_embeddings"] = false;
  const auto name = detail::pytorch_name(dtype).substr(std::string_view("torch.").size());
  for (const auto* field : {"dtype", "torch_dtype"}) {
    if (fields.contains(field)) fields[field] = name;
  }
  if (!fields.contains("torch_dtype")) fields["dtype"] = name;
  if (!end.empty() && fields.contains("architectures")) {
    auto& names = fields["architectures"];
    const bool has_name = names.is_array() && !names.empty() && names[0].is_string();
    if (has_name) {
      names = nlohmann::ordered_json::array({detail::with_end(names[0].get<std::string>(), end)});
    }
  }
  return fields.dump(2) + "\n";
}

/// Loads weights and packs each as soon as it is loaded. Memory is taken for those that have been
/// written alone.
void load_packed(torch::nn::Module& model, const detail::FileEntries& file,
                 const LoadOptions& options, const PackOptions& pack_options) {
  detail::WeightPacker packer(model, pack_options);
  detail::load_weights(model, file, options, [&](const auto& name) { packer.pack(name); });
  packer.finish();
}

void write(const std::string& path, std::string_view text) {
  detail::AtomicFile file(path);
  file.write(text);
  file.commit();
}

/// The end of a saved model's architecture; empty if it stays. Takes the head out of the blueprint
/// of a decoder without one; ties a free head and leaves out a bias of scores as the model does.
template <typename Model>
std::string_view saved_end(const Model& model, Blueprint& blueprint) {
  if constexpr (std::is_same_v<Model, Decoder>) {
    if (!model->options.head()) {
      detail::remove_head(blueprint);
      auto& names = blueprint.part ? blueprint.part->names : blueprint.names;
      names = detail::without_prefix(names, blueprint.prefix);
      return "Model";
    }
  }
  if constexpr (std::is_same_v<Model, EncoderDecoder>) {
    auto& decoder = std::get<EncoderDecoderOptions>(blueprint.options).decoder();
    if (blueprint.free_head) decoder.tied_head(model->options.decoder().tied_head());
    if (!blueprint.score_bias.empty()) decoder.score_bias(model->options.decoder().score_bias());
  }
  return Kind<Model>::kEnd;
}

}  // namespace

template <typename Model>
Model load_pretrained(const std::string& folder, const PretrainedOptions& options) {
  return detail::named("load_pretrained", [&] {
    HEED_CHECK(!options.weights() || !options.device() || options.device()->is_cpu(),
               "device ({}) must be the CPU for packed weights", options.device()->str());
    constexpr bool kMayLackHead = std::is_same_v<Model, Decoder>;
    HEED_CHECK(kMayLackHead || !options.head(), "head must not be given for {}",
               Kind<Model>::kName);
    HEED_CHECK(kMayLackHead || !options.untie_head(), "untie_head must not be given for {}",
               Kind<Model>::kName);
    detail::check_folder(folder);
    const auto config = folder + "/config.json";
    auto blueprint = read_blueprint_of<Model>(config, options.model_type());
    check_architecture<Model>(blueprint, config);
    const auto weights = find_weights(folder);
    const auto file = detail::read_weight_file(detail::Bytes(weights), "");
    HEED_CHECK(!options.weights() || file.packed.empty(),
               "weights must not be given: those of {} are packed already", weights);
    if constexpr (kMayLackHead) {
      fit_head(blueprint, file, options.head());
      if (options.untie_head()) untie_head(blueprint, config, file);
    }
    if constexpr (std::is_same_v<Model, EncoderDecoder>) {
      fit_scores(blueprint, file);
      fit_free_head(blueprint, file);
    }
    const auto dtype =
        options.dtype() ? *options.dtype() : dtype_of<Model>(blueprint, config, weights, file);
    const auto load =
        LoadOptions().name_map(names_of(blueprint, file)).dtype(dtype).device(options.device());
    const auto skeleton = make_skeleton<Model>(blueprint, config, dtype);
    const auto problems = misfits(*skeleton, config, file, load);
    HEED_CHECK(problems.empty(), "{} must describe the tensors of {}{}{}", config, weights,
               problems, head_advice(blueprint, config, file, dtype));
    const detail::UninitializedParameters uninitialized(
        at::device(options.device().value_or(at::kCPU)).dtype(dtype));
    auto model = make<Model>(blueprint, config);
    if (options.weights()) {
      load_packed(*model, file, load, *options.weights());
    } else {
      detail::load_weights(*model, file, load);
    }
    model->eval();
    return model;
  });
}

template <typename Model>
Model make_model(const std::string& path) {
  return detail::named("make_model", [&] {
    const auto config = detail::config_at(path);
    return make<Model>(read_blueprint_of<Model>(config), config);
  });
}

template <typename Model>
void save_pretrained(const Model& model, const std::string& folder, const std::string& source) {
  detail::named("save_pretrained", [&] {
    detail::check_no_adapter(*model, ": save_adapter, or merge_adapter first");
    const auto config = detail::config_at(source);
    auto blueprint = read_blueprint_of<Model>(config);
    const auto end = saved_end(model, blueprint);
    const bool is_untied = untie_saved(model, blueprint);
    const auto dtype = model->parameters().front().scalar_type();
    const auto skeleton = make_skeleton<Model>(blueprint, config, dtype);
    HEED_CHECK(described(*model) == described(*skeleton),
               "{} must describe the model: their options differ", config);
    check_keeps_others(folder, config, blueprint);
    const auto text = saved_config(config, blueprint, dtype, end, is_untied);
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    HEED_CHECK(!error, "folder ({}) cannot be made: {}", folder, error.message());
    save_weights(*model, folder + "/model.safetensors",
                 SaveOptions().name_map(saved_names(*model, blueprint)));
    write(folder + "/config.json", text);
  });
}

template HEED_API Decoder load_pretrained(const std::string&, const PretrainedOptions&);
template HEED_API TextEncoder load_pretrained(const std::string&, const PretrainedOptions&);
template HEED_API ImageEncoder load_pretrained(const std::string&, const PretrainedOptions&);
template HEED_API EncoderDecoder load_pretrained(const std::string&, const PretrainedOptions&);
template HEED_API SequenceClassifier load_pretrained(const std::string&, const PretrainedOptions&);
template HEED_API TokenClassifier load_pretrained(const std::string&, const PretrainedOptions&);
template HEED_API MaskedLanguageModel load_pretrained(const std::string&, const PretrainedOptions&);
template HEED_API Decoder make_model(const std::string&);
template HEED_API TextEncoder make_model(const std::string&);
template HEED_API ImageEncoder make_model(const std::string&);
template HEED_API EncoderDecoder make_model(const std::string&);
template HEED_API SequenceClassifier make_model(const std::string&);
template HEED_API TokenClassifier make_model(const std::string&);
template HEED_API MaskedLanguageModel make_model(const std::string&);
template HEED_API void save_pretrained(const Decoder&, const std::string&, const std::string&);
template HEED_API void save_pretrained(const TextEncoder&, const std::string&, const std::string&);
template HEED_API void save_pretrained(const ImageEncoder&, const std::string&, const std::string&);
template HEED_API void save_pretrained(const EncoderDecoder&, const std::string&,
                                       const std::string&);
template HEED_API void save_pretrained(const SequenceClassifier&, const std::string&,
                                       const std::string&);
template HEED_API void save_pretrained(const TokenClassifier&, const std::string&,
                                       const std::string&);
template HEED_API void save_pretrained(const MaskedLanguageModel&, const std::string&,
                                       const std::string&);

}  // namespace heed
