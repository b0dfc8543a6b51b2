// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <heed/name_maps.h>
#include <heed/pretrained.h>
#include <heed/weights.h>
#include <sys/stat.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "support/expect.h"
#include "support/warnings.h"
#include "support/weight_files.h"
#include "weights/formats/safetensors_writer.h"

namespace heed::test {
namespace {

namespace fs = std::filesystem;

#if defined(__SANITIZE_ADDRESS__)  // which keeps released memory for a while
constexpr int64_t kKilobytes = 400'000;
#else
constexpr int64_t kKilobytes = 100'000;
#endif

/// A folder with a small model.
class PretrainedFolder : public WeightFiles {
 protected:
  PretrainedFolder() {
    write(config_, kConfig);
    save_pretrained(make_model(config_), folder_, config_);
  }

  /// The error of loading the folder, after "load_pretrained: ". Time and memory until then must
  /// not depend on what the files claim.
  template <typename Model = Decoder>
  std::string error() const {
    const auto memory = peak_memory();
    const auto begin = std::clock();  // of this process: the machine may be busy
    const auto error = value_error([&] { load_pretrained<Model>(folder_); });
    EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 2.0) << error;
    EXPECT_LT(peak_memory() - memory, kKilobytes) << error;
    const std::string start = "load_pretrained: ";
    EXPECT_EQ(error.substr(0, start.size()), start) << error;
    return error.substr(std::min(start.size(), error.size()));
  }

  /// The error of loading the folder with a field of config.json changed to `value`, after the path
  /// of config.json.
  std::string error_with(const std::string& field, const std::string& value) const {
    auto text = kConfig;
    const auto name = '"' + field + "\": ";
    const auto place = text.find(name);
    if (place == std::string::npos) {
      text.insert(text.rfind('}'), ", " + name + value);
    } else {
      const auto begin = place + name.size();
      text.replace(begin, text.find_first_of(",}", begin) - begin, value);
    }
    write(config_, text);
    const auto message = error();
    EXPECT_EQ(message.substr(0, config_.size()), config_) << message;
    return message.substr(std::min(config_.size(), message.size()));
  }

  /// Writes a model whose head is its embedding.
  void tie_head() const {
    auto config = kConfig;
    config.insert(1, "\"tie_word_embeddings\": true, ");
    write(config_, config);
    save_pretrained(make_model(config_), folder_, config_);
  }

  /// In kB.
  static int64_t peak_memory() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
      if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(6));
    }
    ADD_FAILURE() << "VmHWM is missing";
    return 0;
  }

  const std::string kConfig = R"({"model_type": "llama", "vocab_size": 19, "hidden_size": 16,
      "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
      "num_key_value_heads": 2, "max_position_embeddings": 32})";
  const std::string kHead = "lm_head.weight", kEmbedding = "model.embed_tokens.weight";
  const std::string folder_ = directory_.string();
  const std::string config_ = folder_ + "/config.json";
  const std::string weights_ = folder_ + "/model.safetensors";
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(PretrainedFolder, MayConsistOfLinks) {
  const auto tokens = at::arange(8).unsqueeze(0);
  const auto expected = load_pretrained(folder_)->forward(tokens);
  // As in the cache of huggingface_hub.
  fs::create_directories(directory_ / "blobs");
  fs::create_directories(directory_ / "snapshot");
  for (const auto* name : {"config.json", "model.safetensors"}) {
    fs::rename(directory_ / name, directory_ / "blobs" / name);
    fs::create_symlink(fs::path("../blobs") / name, directory_ / "snapshot" / name);
  }
  EXPECT_TRUE(load_pretrained(folder_ + "/snapshot")->forward(tokens).equal(expected));
}

/// The embedding is stored once, under either name, or twice.
TEST_F(PretrainedFolder, HasATiedHeadUnderEitherName) {
  const at::NoGradGuard no_grad;
  const auto tokens = at::arange(8).unsqueeze(0);
  tie_head();
  const auto expected = load_pretrained(folder_)->forward(tokens);
  const auto both = read_weights(weights_);
  auto embedding_alone = both, head_alone = both;
  EXPECT_EQ(embedding_alone.erase(kHead), 1);
  EXPECT_EQ(head_alone.erase(kEmbedding), 1);
  for (const auto& written : {both, embedding_alone, head_alone}) {
    save_weights(written, weights_);
    for (const bool untie : {false, true}) {
      auto model = load_pretrained(folder_, PretrainedOptions().untie_head(untie));
      EXPECT_TRUE(model->options.tied_head());
      EXPECT_TRUE(model->forward(tokens).equal(expected));
    }
  }
  auto neither = head_alone;
  neither.erase(kHead);
  save_weights(neither, weights_);
  const auto message = error();
  EXPECT_TRUE(contains(message, "the file holds no model.embed_tokens")) << message;
}

TEST_F(PretrainedFolder, MayHaveAHeadThatItsConfigTies) {
  const at::NoGradGuard no_grad;
  const auto tokens = at::arange(8).unsqueeze(0);
  const auto expected = load_pretrained(folder_)->forward(tokens);
  const auto weights = read_bytes(weights_);
  tie_head();
  write(weights_, weights);
  EXPECT_EQ(error(), config_ + " must describe the tensors of " + weights_ +
                         "; name map: lm_head -> model.embed_tokens: lm_head.weight must equal "
                         "model.embed_tokens.weight, to which it is tied in the module; "
                         "PretrainedOptions::untie_head(true) keeps both");
  const auto untie = PretrainedOptions().untie_head(true);
  Decoder model{nullptr};
  {
    const Warnings warnings;
    model = load_pretrained(folder_, untie);
    EXPECT_EQ(warnings.messages(),
              std::vector<std::string>(
                  {"load_pretrained: " + config_ + ": tie_word_embeddings does not fit path (" +
                   weights_ + "), whose head is not the embedding: the model keeps both"}));
  }
  EXPECT_FALSE(model->options.tied_head());
  EXPECT_TRUE(model->forward(tokens).equal(expected));
  // The saved config.json says that the head is its own.
  const auto saved = folder_ + "/saved";
  save_pretrained(model, saved, folder_);
  EXPECT_TRUE(contains(read_bytes(saved + "/config.json"), "\"tie_word_embeddings\": false"));
  EXPECT_TRUE(load_pretrained(saved)->forward(tokens).equal(expected));
  EXPECT_EQ(value_error([&] { load_pretrained<TextEncoder>(folder_, untie); }),
            "load_pretrained: untie_head must not be given for a TextEncoder");
}

TEST_F(PretrainedFolder, MayLeaveOutItsModelType) {
  const at::NoGradGuard no_grad;
  const auto tokens = at::arange(8).unsqueeze(0);
  const auto expected = load_pretrained(folder_)->forward(tokens);
  auto config = kConfig;
  config.replace(1, std::string(R"("model_type": "llama", )").size(), "");
  write(config_, config);
  EXPECT_EQ(error(),
            config_ + ": model_type must be there, or be given by PretrainedOptions::model_type");
  const auto llama = PretrainedOptions().model_type("llama");
  EXPECT_TRUE(load_pretrained(folder_, llama)->forward(tokens).equal(expected));
  EXPECT_EQ(value_error([&] { load_pretrained(folder_, PretrainedOptions().model_type("bert")); }),
            "load_pretrained: " + config_ +
                ": num_key_value_heads 2 is not understood; it may change the numbers");
  write(config_, kConfig);
  EXPECT_TRUE(load_pretrained(folder_, llama)->forward(tokens).equal(expected));
  EXPECT_EQ(value_error([&] { load_pretrained(folder_, PretrainedOptions().model_type("qwen2")); }),
            "load_pretrained: " + config_ +
                ": model_type \"llama\" must be \"qwen2\", as the options say");
}

/// The files of folders from before safetensors, which come last.
TEST_F(PretrainedFolder, HasShardsOfTorchSave) {
  const at::NoGradGuard no_grad;
  const auto tokens = at::arange(8).unsqueeze(0);
  const auto expected = load_pretrained(folder_)->forward(tokens);
  const auto tensors = read_weights(weights_);
  std::string map;
  NamedTensors first, second;
  for (const auto& [name, tensor] : tensors) {
    const bool is_first = first.size() <= second.size();
    (is_first ? first : second)[name] = tensor;
    map += (map.empty() ? "\"" : ", \"") + name + "\": \"" + (is_first ? "one" : "two") + '"';
  }
  // The content of a shard tells its format, whatever its name.
  save_weights(first, folder_ + "/one");
  save_weights(second, folder_ + "/two");
  fs::remove(weights_);
  write(folder_ + "/pytorch_model.bin.index.json", "{\"weight_map\": {" + map + "}}");
  EXPECT_TRUE(load_pretrained(folder_)->forward(tokens).equal(expected));
  write(folder_ + "/pytorch_model.bin", "");  // which comes first
  EXPECT_TRUE(contains(error(), "pytorch_model.bin"));
}

TEST_F(PretrainedFolder, IsPackedWhileItIsLoaded) {
  const at::NoGradGuard no_grad;
  const auto tokens = at::arange(5).unsqueeze(0);
  const auto expected = load_pretrained(folder_)->forward(tokens);
  const auto load = [&](const PackOptions& weights) {
    return load_pretrained(folder_, PretrainedOptions().weights(weights));
  };
  auto packed = load(PackFormat::as_is);
  int64_t without_memory = 0;
  for (const auto& parameter : packed->parameters()) {
    without_memory += parameter.has_storage() ? 0 : 1;
    EXPECT_FALSE(parameter.requires_grad());
  }
  EXPECT_GE(without_memory, 7);  // those of a block
  EXPECT_TRUE(are_alike({packed->forward(tokens)}, {expected}, 1e-5));
  EXPECT_TRUE(are_alike({load(PackFormat::int8)->forward(tokens)}, {expected}, 0.05));
  EXPECT_EQ(value_error([&] {
              load_pretrained(
                  folder_,
                  PretrainedOptions().device(at::Device(at::kMeta)).weights(PackFormat::int8));
            }),
            "load_pretrained: device (meta) must be the CPU for packed weights");
}

TEST_F(PretrainedFolder, MayHoldPackedWeights) {
  const at::NoGradGuard no_grad;
  const auto tokens = at::arange(5).unsqueeze(0);
  auto model = load_pretrained(folder_, PretrainedOptions().weights(PackFormat::int8));
  const auto other = folder_ + "/packed";
  save_pretrained(model, other, folder_);
  auto loaded = load_pretrained(other);
  EXPECT_FALSE(loaded->stack->blocks->ptr<TransformerBlockImpl>(0)
                   ->feed_forward->fc_in->weight.has_storage());
  EXPECT_TRUE(loaded->forward(tokens).equal(model->forward(tokens)));
  // In another dtype, as other folders.
  auto half = load_pretrained(other, PretrainedOptions().dtype(at::kBFloat16));
  EXPECT_EQ(half->forward(tokens).scalar_type(), at::kBFloat16);
  EXPECT_EQ(
      value_error([&] { load_pretrained(other, PretrainedOptions().weights(PackFormat::int4)); }),
      "load_pretrained: weights must not be given: those of " + other +
          "/model.safetensors are packed already");
}

/// In DeepSeek's files, the bias by which experts are chosen is float32 beside weights of bfloat16.
TEST_F(PretrainedFolder, MayHaveABufferInFloat32) {
  const at::NoGradGuard no_grad;
  write(config_, R"({"model_type": "deepseek_v3", "vocab_size": 20, "hidden_size": 16,
      "intermediate_size": 24, "moe_intermediate_size": 8, "num_hidden_layers": 1,
      "num_attention_heads": 2, "num_key_value_heads": 2, "first_k_dense_replace": 0,
      "n_routed_experts": 4, "num_experts_per_tok": 1, "n_group": 2, "topk_group": 1,
      "kv_lora_rank": 8, "q_lora_rank": null, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4,
      "v_head_dim": 4})");
  auto model = make_model(config_);
  const auto bias_of = [](const Decoder& decoder) {
    const auto block = decoder->stack->blocks.ptr()->ptr<TransformerBlockImpl>(0);
    return block->feed_forward_module()->as<MixtureOfExperts>()->choice_bias;
  };
  bias_of(model).copy_(at::arange(4) * 0.001 + 1.0);  // all 1 in bfloat16
  model->to(at::kBFloat16);
  save_pretrained(model, folder_, config_);
  EXPECT_EQ(read_weights(weights_)["model.layers.0.mlp.gate.e_score_correction_bias"].scalar_type(),
            at::kFloat);
  for (const auto dtype : {at::kBFloat16, at::kFloat}) {
    const auto loaded = load_pretrained(folder_, PretrainedOptions().dtype(dtype));
    EXPECT_TRUE(bias_of(loaded).equal(bias_of(model)));
  }
  const auto loaded = load_pretrained(folder_);
  EXPECT_EQ(loaded->parameters()[0].scalar_type(), at::kBFloat16);
  EXPECT_TRUE(bias_of(loaded).equal(bias_of(model)));
}

/// Older files have buffers of another dtype, which the model does not take.
TEST_F(PretrainedFolder, MayHaveOtherDtypesInWhatIsLeftOut) {
  auto tensors = read_weights(weights_);
  for (auto& [name, tensor] : tensors) tensor = tensor.to(at::kBFloat16);
  const std::string buffer = "model.layers.0.self_attn.rotary_emb.inv_freq";
  tensors[buffer] = at::ones({2});
  const auto write_tensors = [&] {
    std::string file;
    detail::write_safetensors(
        tensors, [&](const auto& name) { return tensors[name]; },
        [&](std::string_view bytes) { file += bytes; });
    return file;
  };
  auto file = write_tensors();
  write(weights_, file);
  EXPECT_EQ(load_pretrained(folder_)->parameters()[0].scalar_type(), at::kBFloat16);
  // A buffer that is left out may also be of a dtype that LibTorch does not have.
  const auto place = file.find("F32");
  write(weights_, file.replace(place, 3, "F4 "));
  EXPECT_EQ(load_pretrained(folder_)->parameters()[0].scalar_type(), at::kBFloat16);
  auto& norm = tensors["model.norm.weight"];
  norm = norm.to(at::kFloat);
  write(weights_, write_tensors());
  EXPECT_EQ(error(), "dtype must be given: the tensors of " + weights_ + " have Float, BFloat16");
  norm = norm.to(at::kComplexFloat);
  file = write_tensors();
  write(weights_, file.replace(file.find("C64"), 3, "X64"));
  const auto unheld = error();
  EXPECT_TRUE(contains(unheld, R"(a tensor of "X64" in the file: model.norm.weight)")) << unheld;
}

/// A text model beside a vision tower is saved in a folder of its own.
TEST_F(PretrainedFolder, MayDescribeATextModelBesideOthers) {
  const at::NoGradGuard no_grad;
  write(config_, R"({"model_type": "gemma3", "tie_word_embeddings": false, "dtype": "float32",
      "vision_config": {"hidden_size": 8}, "text_config": {"model_type": "gemma3_text",
      "vocab_size": 19, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
      "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
      "tie_word_embeddings": true}})");
  auto model = make_model(config_);
  auto file = name_maps::gemma3().invert(*model);
  file["vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.weight"] = at::ones({3, 3});
  file["multi_modal_projector.mm_input_projection_weight"] = at::ones({8, 16});
  save_weights(file, weights_);
  const auto tokens = at::arange(8).unsqueeze(0);
  const auto expected = model->forward(tokens);
  auto loaded = load_pretrained(folder_);
  EXPECT_TRUE(loaded->forward(tokens).equal(expected));
  EXPECT_ERROR("save_pretrained: folder (" + folder_ + "/.) must be another folder than that of " +
                   config_ + ", which describes other models too",
               save_pretrained(loaded, folder_ + "/.", folder_));
  const auto other = folder_ + "/text";
  save_pretrained(loaded, other, folder_);
  const auto config = read_bytes(other + "/config.json");
  for (const auto* field : {R"("model_type": "gemma3_text")", R"("tie_word_embeddings": false)",
                            R"("head_dim": 4)", R"("dtype": "float32")"}) {
    EXPECT_TRUE(contains(config, field)) << config;
  }
  EXPECT_FALSE(contains(config, "vision")) << config;
  const auto names = read_weights(other + "/model.safetensors");
  EXPECT_EQ(names.count("model.embed_tokens.weight"), 1U);
  EXPECT_EQ(names.count("lm_head.weight"), 1U);
  EXPECT_TRUE(load_pretrained(other)->forward(tokens).equal(expected));
}

/// transformers 4 leaves such a head out and transformers 5 takes it: the text would be another one
/// than that of one of them.
TEST_F(PretrainedFolder, HasAHeadThatIsNotItsEmbedding) {
  EXPECT_EQ(error_with("tie_word_embeddings", "true"),
            " must describe the tensors of " + weights_ +
                "; name map: lm_head -> model.embed_tokens: lm_head.weight must equal "
                "model.embed_tokens.weight, to which it is tied in the module; "
                "PretrainedOptions::untie_head(true) keeps both");
}

/// DecoderOptions, which untie the head, come from config.json here.
TEST_F(PretrainedFolder, HasAHeadInANameOfHeeds) {
  auto tensors = read_weights(weights_);
  tensors["head.weight"] = tensors.at("lm_head.weight");
  tensors.erase("lm_head.weight");
  save_weights(tensors, weights_);
  const auto message = error_with("tie_word_embeddings", "true");
  EXPECT_TRUE(contains(message, "unexpected: head.weight")) << message;
  EXPECT_FALSE(contains(message, "tied_head")) << message;
}

TEST_F(PretrainedFolder, HasSizesThatAreRefused) {
  for (const std::string field :
       {"hidden_size", "vocab_size", "intermediate_size", "head_dim", "num_attention_heads",
        "num_key_value_heads", "max_position_embeddings"}) {
    EXPECT_EQ(error_with(field, "1000000000000"),
              ": " + field + " 1000000000000 must be a whole number from 1 to 2147483648");
  }
  EXPECT_EQ(error_with("num_hidden_layers", "1000000000"),
            ": num_hidden_layers 1000000000 must be a whole number from 1 to 1000");
}

/// As large as sizes may be, which other models may have.
TEST_F(PretrainedFolder, HasSizesThatTheWeightsDoNotHave) {
  for (const auto& [field, tensor] : std::map<std::string, std::string>{
           {"vocab_size", "token_embedding.weight"}, {"intermediate_size", "fc_in.weight"}}) {
    const auto message = error_with(field, "2147483648");
    EXPECT_TRUE(contains(message, weights_)) << message;
    EXPECT_TRUE(contains(message, tensor)) << message;
  }
  for (const std::string field : {"hidden_size", "head_dim"}) {
    EXPECT_EQ(error_with(field, "2147483648"),
              ": " + field + " 2147483648 must make heads of at most 65536 elements");
  }
  for (const auto* field : {"num_attention_heads", "num_key_value_heads"}) {
    const auto message = error_with(field, "2147483648");
    EXPECT_TRUE(contains(message, field)) << message;
  }
  const auto message = error_with("num_hidden_layers", "1000");
  EXPECT_TRUE(contains(message, weights_)) << message;
}

TEST_F(PretrainedFolder, HasANestedConfig) {
  const std::string brackets(100'000, '[');
  for (const auto& text : {R"({"a": )" + brackets + "}", brackets,
                           R"({"a": )" + brackets + std::string(100'000, ']') + "}"}) {
    write(config_, text);
    EXPECT_TRUE(contains(error(), "path (" + config_ + ") must be a sound JSON file"));
  }
}

TEST_F(PretrainedFolder, HasNoConfig) {
  const auto path = "path (" + config_ + ") must ";
  write(config_, "");
  EXPECT_EQ(error(), path + "be a sound JSON file; it is empty: write or download it again");
  write(config_, "<!doctype html>");
  EXPECT_TRUE(contains(error(), path + "be a sound JSON file; it is an HTML page: "));
  fs::remove(config_);
  const auto missing = error();
  EXPECT_TRUE(contains(missing, path)) << missing;
  fs::create_directory(config_);
  EXPECT_EQ(error(), path + "name a file; it is a folder");
  fs::remove(config_);
  ASSERT_EQ(::mkfifo(config_.c_str(), 0600), 0);
  EXPECT_EQ(error(),
            path + "name a file; it is a pipe, which load_weights reads as a std::ifstream");
  fs::remove(config_);
  fs::create_symlink("config.json", config_);
  EXPECT_EQ(error(), path + "name an existing file");
  EXPECT_TRUE(contains(value_error([&] { make_model(config_); }), path));
  EXPECT_TRUE(contains(value_error([&] { load_pretrained(config_); }), config_));
  EXPECT_EQ(value_error([&] { load_pretrained(""); }), "load_pretrained: folder () must exist");
  fs::remove(config_);
  fs::create_symlink("/dev/zero", config_);
  EXPECT_EQ(error(), path + "name a file; it is a device");
}

/// The names that huggingface.co gives models. The folders that the advice names, once they are
/// there, load.
TEST_F(PretrainedFolder, IsNoNameOfAModel) {
  const auto here = fs::current_path();
  fs::current_path(directory_);
  const auto error = [](const std::string& name) {
    return value_error([&] { load_pretrained(name); });
  };
  EXPECT_EQ(error("meta-llama/Llama-3.2-1B"),
            "load_pretrained: folder (meta-llama/Llama-3.2-1B) must exist; heed downloads nothing: "
            "run hf download meta-llama/Llama-3.2-1B --local-dir Llama-3.2-1B, and pass "
            "Llama-3.2-1B");
  EXPECT_EQ(error("gpt2"),
            "load_pretrained: folder (gpt2) must exist; heed downloads nothing: run hf download "
            "gpt2 --local-dir gpt2, and pass gpt2");
  EXPECT_EQ(value_error([] { make_model("meta-llama/Llama-3.2-1B"); }),
            "make_model: path (meta-llama/Llama-3.2-1B) must exist; heed downloads nothing: run hf "
            "download meta-llama/Llama-3.2-1B --local-dir Llama-3.2-1B, and pass Llama-3.2-1B");
  const auto long_name = std::string(1'000'000, 'a');
  EXPECT_TRUE(contains(error(long_name), "hf download aaa"));
  EXPECT_EQ(value_error([] { make_model("other/config.json"); }),
            "make_model: path (other/config.json) must name an existing file");
  for (const auto* path :
       {"/absent", "./absent", "a/b/c", "../absent", "a b", "a/", "~/model", "a/.", "a/..", "_a",
        "a.json", "a.safetensors", "a/a.bin", "a/a.pt", "a.pth", "a/a.gguf"}) {
    EXPECT_EQ(error(path), "load_pretrained: folder (" + std::string(path) + ") must exist");
  }
  fs::create_directory("Llama-3.2-1B");  // as the command does
  for (const auto* name : {"config.json", "model.safetensors"}) {
    fs::copy(name, fs::path("Llama-3.2-1B") / name);
  }
  EXPECT_EQ(load_pretrained("Llama-3.2-1B")->options.vocab_size(), 19);
  EXPECT_EQ(error("model.safetensors"),
            "load_pretrained: folder (model.safetensors) must be a folder; it is a file: pass its "
            "folder, .");
  EXPECT_EQ(load_pretrained(".")->options.vocab_size(), 19);
  fs::current_path(here);
}

/// load_weights names load_pretrained where a folder has what it reads.
TEST_F(PretrainedFolder, IsAdvisedForItsFile) {
  auto model = make_model(config_);
  const auto message = value_error([&] { load_weights(*model, weights_); });
  const auto advice =
      "\n  LoadOptions that may help: name_map (name_maps::llama(), for a Decoder)"
      "\n  load_pretrained (\"" +
      folder_ + "\") may make the model of this file";
  EXPECT_TRUE(contains(message, advice)) << message;
  // load_pretrained would read another file.
  const auto other = folder_ + "/ema.safetensors";
  fs::copy(weights_, other);
  const auto of_other = value_error([&] { load_weights(*model, other); });
  EXPECT_TRUE(contains(of_other, "name_maps::llama()")) << of_other;
  EXPECT_FALSE(contains(of_other, "load_pretrained")) << of_other;
  EXPECT_EQ(load_pretrained(folder_)->options.vocab_size(), 19);
}

TEST_F(PretrainedFolder, IsNoFile) {
  EXPECT_EQ(value_error([&] { load_pretrained(weights_); }),
            "load_pretrained: folder (" + weights_ +
                ") must be a folder; it is a file: pass its folder, " + folder_);
  EXPECT_EQ(load_pretrained(folder_)->options.vocab_size(), 19);
  fs::remove(config_);
  EXPECT_EQ(value_error([&] { load_pretrained(weights_); }),
            "load_pretrained: folder (" + weights_ +
                ") must be a folder; it is a file: load_weights reads one into a module");
}

TEST_F(PretrainedFolder, HasNoWeights) {
  const auto none = "folder (" + folder_ +
                    ") must have model.safetensors, model.safetensors.index.json, "
                    "pytorch_model.bin or pytorch_model.bin.index.json";
  const auto path = "path (" + weights_ + ") must ";
  fs::remove(weights_);
  EXPECT_EQ(error(), none);
  fs::create_symlink("model.safetensors", weights_);
  EXPECT_EQ(error(), none);
  fs::remove(weights_);
  fs::create_directory(weights_);
  EXPECT_EQ(error(), path + "name a file; it is a folder");
  fs::remove(weights_);
  ASSERT_EQ(::mkfifo(weights_.c_str(), 0600), 0);
  EXPECT_EQ(error(),
            path + "name a file; it is a pipe, which load_weights reads as a std::ifstream");
  fs::remove(weights_);
  write(weights_, "");
  EXPECT_TRUE(contains(error(), path));
}

TEST_F(PretrainedFolder, HasWeightsThatAreCutShort) {
  const auto bytes = read_bytes(weights_);
  for (const auto size : {bytes.size() - 1, bytes.size() / 2, size_t{100}, size_t{8}, size_t{7}}) {
    write(weights_, bytes.substr(0, size));
    const auto message = error();
    EXPECT_TRUE(contains(message, "path (" + weights_ + ") must ")) << message;
  }
}

TEST_F(PretrainedFolder, HasShardsThatAreMissing) {
  fs::rename(weights_, directory_ / "first.safetensors");
  const auto index = [](const std::string& file) {
    return R"({"weight_map": {"model.norm.weight": ")" + file + "\"}}";
  };
  for (const std::string file : {"second.safetensors", "../x", "../../../etc/passwd", "/etc/passwd",
                                 "", ".", "..", "sub/first.safetensors"}) {
    write(weights_ + ".index.json", index(file));
    const auto message = error();
    EXPECT_TRUE(contains(message, weights_ + ".index.json") || contains(message, file)) << message;
    EXPECT_FALSE(contains(message, "root:")) << message;
  }
  // Not all tensors have a place.
  write(weights_ + ".index.json", index("first.safetensors"));
  const auto message = error();
  EXPECT_TRUE(contains(message, "\"lm_head.weight\"")) << message;
}

TEST_F(PretrainedFolder, HasTheConfigOfAnotherModel) {
  EXPECT_EQ(error<TextEncoder>(), config_ + " must describe a TextEncoder; it describes a Decoder");
  EXPECT_EQ(error<ImageEncoder>(),
            config_ + " must describe an ImageEncoder; it describes a Decoder");
  write(config_, R"({"model_type": "bert"})");
  EXPECT_EQ(error(), config_ + " must describe a Decoder; it describes a TextEncoder");
  const auto bert = error<TextEncoder>();
  EXPECT_TRUE(contains(bert, config_)) << bert;
  EXPECT_TRUE(contains(bert, "holds no bert.embeddings.word_embeddings")) << bert;
  write(config_, R"({"model_type": "gpt2"})");
  const auto gpt2 = error();
  EXPECT_TRUE(contains(gpt2, config_)) << gpt2;
  EXPECT_TRUE(contains(gpt2, "holds no transformer.wpe")) << gpt2;
}

}  // namespace
}  // namespace heed::test
