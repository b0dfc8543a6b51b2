// SPDX-License-Identifier: BSD-3-Clause
#include "pretrained_models.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

namespace heed::test::pretrained {

std::string folder_of(const std::string& name) {
  return std::string(HEED_PARITY_FIXTURES) + "/pretrained/" + name;
}

std::vector<std::vector<std::string>> read_rows(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(file, line);) {
    std::istringstream cells(line);
    rows.emplace_back();
    for (std::string cell; std::getline(cells, cell, '\t');) rows.back().push_back(cell);
  }
  return rows;
}

namespace {

std::vector<Case> cases_below(const std::string& above, const std::string& kind = "") {
  std::vector<Case> found;
  for (const auto& row : read_rows(folder_of(above + "cases.txt"))) {
    if (!kind.empty() && row.at(1) != kind) continue;
    found.push_back({row.at(0), row.at(1), {}, above});
    std::istringstream fields(row.size() > 2 ? row[2] : "");
    for (std::string field; std::getline(fields >> std::ws, field, ',');) {
      found.back().fields.push_back(field);
    }
  }
  return found;
}

}  // namespace

std::vector<Case> cases(const std::string& kind) { return cases_below("", kind); }

std::vector<Case> pair_cases() { return cases_below("encoder_decoders/"); }

AnyModel load(const std::string& kind, const std::string& folder,
              const PretrainedOptions& options) {
  if (kind == "decoder") return load_pretrained(folder, options);
  if (kind == "text_encoder") return load_pretrained<TextEncoder>(folder, options);
  if (kind == "encoder_decoder") return load_pretrained<EncoderDecoder>(folder, options);
  return load_pretrained<ImageEncoder>(folder, options);
}

void save(const AnyModel& model, const std::string& folder, const std::string& source) {
  std::visit([&](const auto& m) { save_pretrained(m, folder, source); }, model);
}

torch::nn::Module& module_of(const AnyModel& model) {
  return std::visit([](const auto& m) -> torch::nn::Module& { return *m.ptr(); }, model);
}

at::Tensor compute(AnyModel& model, const Fixture& expected, int64_t sequences) {
  const auto parameter = module_of(model).parameters().front();
  const auto first = [&](const at::Tensor& inputs) {
    return inputs.narrow(0, 0, sequences).to(parameter.device());
  };
  if (auto* decoder = std::get_if<Decoder>(&model)) return (*decoder)(first(expected["tokens"]));
  if (auto* encoder = std::get_if<TextEncoder>(&model)) {
    auto types = expected.find("types");
    if (types) types = first(*types);
    return (*encoder)(first(expected["tokens"]), TransformerInputs(), types);
  }
  if (auto* pair = std::get_if<EncoderDecoder>(&model)) {
    auto source = first(expected["source"]);
    if (source.is_floating_point()) source = source.to(parameter.scalar_type());
    return (*pair)->forward(source, first(expected["target"]));
  }
  return std::get<ImageEncoder>(model)(first(expected["images"]).to(parameter.scalar_type()));
}

at::Tensor loss_of(const at::Tensor& output, const Fixture& expected) {
  if (const auto factors = expected.find("loss.factors")) {
    return (output * *factors).square().mean();
  }
  const auto& tokens = expected["tokens"];
  const auto length = tokens.size(1) - 1;
  return at::cross_entropy_loss(output.narrow(1, 0, length).flatten(0, 1),
                                tokens.narrow(1, 1, length).flatten());
}

namespace {

/// save_pretrained also writes what shares a tensor, under its second names.
void erase_shared(NamedTensors& actual, const Fixture& expected) {
  for (const std::string name : {"lm_head.weight", "proj_out.weight", "encoder.embed_tokens.weight",
                                 "decoder.embed_tokens.weight", "model.encoder.embed_tokens.weight",
                                 "model.decoder.embed_tokens.weight"}) {
    if (!expected.find("gradient." + name)) actual.erase(name);
  }
  // Sinusoidal positions, which are not trained.
  if (actual.count("model.encoder.conv1.weight") > 0) {
    actual.erase("model.encoder.embed_positions.weight");
  }
}

}  // namespace

void expect_python_reads(const std::string& script, const std::string& folder) {
  const auto command =
      std::string("\"") + HEED_PYTHON + "\" \"" + script + "\" check \"" + folder + '"';
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

NamedTensors gradients(AnyModel& model, const Case& c) {
  const auto expected = c.expected();
  const auto loss = loss_of(compute(model, expected), expected);
  EXPECT_LE(difference(loss.detach(), expected["loss"]), kScores);
  loss.backward();
  const auto folder = c.folder() + "/gradients";
  auto written =
      std::visit([&](const auto& m) { return saved_gradients(m, folder, c.folder()); }, model);
  for (auto item = written.begin(); item != written.end();) {  // without buffers
    const bool is_buffer = item->first.find("e_score_correction_bias") != std::string::npos ||
                           item->first == "final_logits_bias";
    item = is_buffer ? written.erase(item) : std::next(item);
  }
  if (c.kind == "encoder_decoder") erase_shared(written, expected);
  return written;
}

double difference(const at::Tensor& actual, const at::Tensor& expected) {
  if (actual.sizes() != expected.sizes()) {
    ADD_FAILURE() << "shape " << actual.sizes() << ", not " << expected.sizes();
    return 1.0;
  }
  const auto largest = [](const at::Tensor& tensor) { return tensor.abs().max().item<double>(); };
  return largest(actual.cpu().to(at::kDouble) - expected.to(at::kDouble)) / largest(expected);
}

double check_gradients(const NamedTensors& actual, const Fixture& expected) {
  const std::string start = "gradient.";
  const auto ends_with = [](const std::string& text, const std::string& end) {
    return text.size() >= end.size() &&
           text.compare(text.size() - end.size(), end.size(), end) == 0;
  };
  std::map<std::string, at::Tensor> wanted;
  double largest = 0.0;
  for (const auto& [name, tensor] : expected.all()) {
    if (name.rfind(start, 0) != 0) continue;
    wanted[name.substr(start.size())] = tensor;
    largest = std::max(largest, tensor.abs().max().item<double>());
  }
  // save_pretrained writes a head that is tied to the embedding too.
  const auto heads = [](const auto& gradients) {
    return gradients.count("lm_head.weight") + gradients.count("embed_out.weight") +
           gradients.count("language_model.lm_head.weight");
  };
  const bool is_tied = heads(wanted) < heads(actual);
  EXPECT_EQ(actual.size(), wanted.size() + (is_tied ? 1 : 0));
  double worst = 0.0;
  for (const auto& [name, tensor] : wanted) {
    // A file may have the prefix of a model with a head.
    const auto found = std::find_if(actual.begin(), actual.end(), [&](const auto& item) {
      return ends_with("." + name, "." + item.first) || ends_with("." + item.first, "." + name);
    });
    if (found == actual.end() || found->second.sizes() != tensor.sizes()) {
      ADD_FAILURE() << name << " is missing, or has another shape";
      continue;
    }
    const auto apart = (found->second - tensor).abs().max().item<double>();
    // Keys' biases have no gradient but for rounding; that of a classifier's bias almost cancels.
    // Each of some 20 layers rounds by up to 6e-8.
    EXPECT_LE(apart, kGradients * tensor.abs().max().item<double>() + 4e-6 * largest) << name;
    worst = std::max(worst, apart / largest);
  }
  return worst;
}

}  // namespace heed::test::pretrained
