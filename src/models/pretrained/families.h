// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "models/pretrained/blueprint.h"
#include "models/pretrained/config.h"

namespace heed::detail {

/// Makes a family's blueprint of its config.json. It reads all fields that change the numbers and
/// ignores those of the family's that do not. Throws c10::ValueError when a field is not supported.
using ReadFamily = Blueprint (*)(const Config& config);

Blueprint read_llama(const Config& config);
Blueprint read_mistral(const Config& config);
Blueprint read_qwen2(const Config& config);
Blueprint read_qwen3(const Config& config);
Blueprint read_mixtral(const Config& config);
Blueprint read_olmoe(const Config& config);
Blueprint read_qwen2_moe(const Config& config);
Blueprint read_qwen3_moe(const Config& config);
Blueprint read_gpt_oss(const Config& config);
Blueprint read_deepseek_v2(const Config& config);
Blueprint read_deepseek_v3(const Config& config);
Blueprint read_phi3(const Config& config);
Blueprint read_stablelm(const Config& config);
Blueprint read_gemma(const Config& config);
Blueprint read_gemma2(const Config& config);
Blueprint read_gemma3_text(const Config& config);
Blueprint read_gemma3(const Config& config);
Blueprint read_olmo2(const Config& config);
Blueprint read_olmo3(const Config& config);
Blueprint read_smollm3(const Config& config);
Blueprint read_starcoder2(const Config& config);
Blueprint read_cohere2(const Config& config);
Blueprint read_granite(const Config& config);
Blueprint read_glm4(const Config& config);
Blueprint read_gpt2(const Config& config);
Blueprint read_gpt_neox(const Config& config);
Blueprint read_bert(const Config& config);
Blueprint read_roberta(const Config& config);
Blueprint read_xlm_roberta(const Config& config);
Blueprint read_electra(const Config& config);
Blueprint read_distilbert(const Config& config);
Blueprint read_modernbert(const Config& config);
Blueprint read_vit(const Config& config);
Blueprint read_dinov2(const Config& config);
Blueprint read_dinov2_with_registers(const Config& config);
Blueprint read_clip_text(const Config& config);
Blueprint read_clip_image(const Config& config);
Blueprint read_clip_text_model(const Config& config);
Blueprint read_clip_vision_model(const Config& config);
Blueprint read_siglip_text(const Config& config);
Blueprint read_siglip_image(const Config& config);
Blueprint read_siglip_text_model(const Config& config);
Blueprint read_siglip_vision_model(const Config& config);
Blueprint read_t5(const Config& config);
Blueprint read_mt5(const Config& config);
Blueprint read_umt5(const Config& config);
Blueprint read_bart(const Config& config);
Blueprint read_marian(const Config& config);
Blueprint read_whisper(const Config& config);

}  // namespace heed::detail
