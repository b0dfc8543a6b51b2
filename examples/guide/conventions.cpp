// SPDX-License-Identifier: BSD-3-Clause
#include "guide.h"

#include <limits>

namespace guide {

namespace {

void masks() {
  auto query = torch::randn({2, 8, 6, 16}), key = torch::randn({2, 8, 6, 16});
  auto value = torch::randn({2, 8, 6, 16});

  // true: the query may see the key.
  auto mask = heed::combine_masks({heed::causal_mask(6, 6),                         // [L, S]
                                   heed::padding_mask(torch::tensor({6, 4}), 6)});  // [B, 1, 1, S]
  auto masked = heed::attend(query, key, value, heed::AttendOptions().mask(mask));

  // The same, without a tensor for the causal part.
  auto padding = heed::padding_mask(torch::tensor({6, 4}), 6);
  auto same = heed::attend(query, key, value, heed::AttendOptions().mask(padding).causal(true));
  std::cout << "a causal mask is causal(true): " << torch::allclose(masked, same, 1e-5, 1e-6)
            << '\n';

  // A mask that says what is hidden.
  auto hidden = torch::ones({6, 6}, torch::kBool).triu(1);
  auto turned = heed::from_hidden(hidden);  // causal_mask(6, 6)
  std::cout << "from_hidden: " << turned.equal(heed::causal_mask(6, 6)) << '\n';

  // A mask that is added to scores.
  auto additive = torch::full({6, 6}, -std::numeric_limits<float>::infinity()).triu(1);
  auto read = heed::mask_from_additive(additive);  // causal_mask(6, 6)
  std::cout << "mask_from_additive: " << read.equal(heed::causal_mask(6, 6)) << '\n';

  // A query that may see no key.
  auto nothing = torch::zeros({6, 6}, torch::kBool);
  auto zero = heed::attend(query, key, value, heed::AttendOptions().mask(nothing));  // all 0
  std::cout << "sees nothing: " << zero.abs().max().item<float>() << '\n';
}

void mask_batches() {
  // Two images of 4 windows with 9 tokens each; a mask for each window of an image.
  auto windows = torch::randn({8, 4, 9, 16});
  auto of_windows = torch::rand({4, 1, 9, 9}) > 0.5;
  auto options = heed::AttendOptions().mask(of_windows).mask_batch(heed::MaskBatch::cycled);
  auto cycled = heed::attend(windows, windows, windows, options);
  auto repeated = heed::AttendOptions().mask(of_windows.repeat({2, 1, 1, 1}));
  std::cout << "a mask of some batches: "
            << torch::allclose(cycled, heed::attend(windows, windows, windows, repeated)) << '\n';
}

void masks_by_rule() {
  // Each token sees its own document, and the first 4 tokens of the sequence.
  auto ids = torch::arange(128).div(50, "floor");
  const auto* document = ids.const_data_ptr<int64_t>();
  auto blocks = heed::make_block_mask(
      /*batch=*/1, /*heads=*/1, /*query_length=*/128, /*key_length=*/128,
      [document](int64_t /*b*/, int64_t /*h*/, int64_t i, int64_t j) {
        return j <= i && (document[i] == document[j] || j < 4);
      });
  std::cout << blocks << '\n';
  auto longer = torch::randn({2, 8, 128, 16});
  auto by_rule = heed::attend(longer, longer, longer, heed::AttendOptions().block_mask(blocks));
  auto masked = heed::attend(longer, longer, longer, heed::AttendOptions().mask(blocks.mask()));
  std::cout << "as by a tensor: " << torch::allclose(by_rule, masked, 1e-5, 1e-6) << '\n';
}

void positions() {
  // Two queries over six keys: the second is the last key's.
  std::cout << "causal\n" << heed::causal_mask(2, 6).to(torch::kInt) << '\n';
  std::cout << "window of 3\n" << heed::window_mask(2, 6, /*window=*/3).to(torch::kInt) << '\n';
  // As at::scaled_dot_product_attention has it: the first query is the first key's.
  std::cout << "top left\n" << heed::causal_mask(2, 6, /*offset=*/0).to(torch::kInt) << '\n';

  auto query = torch::randn({1, 8, 2, 16}), key = torch::randn({1, 8, 6, 16});
  auto value = torch::randn({1, 8, 6, 16});
  // As at::scaled_dot_product_attention(..., is_causal=true).
  auto options = heed::AttendOptions().causal(true).top_left(true);
  auto top_left = heed::attend(query, key, value, options);
  auto theirs = at::scaled_dot_product_attention(query, key, value, {}, /*dropout_p=*/0.0,
                                                 /*is_causal=*/true);
  std::cout << "top_left is is_causal: " << torch::allclose(top_left, theirs, 1e-4, 1e-5) << '\n';
}

/// The keys that queries of 6 tokens see by these options: their weights are not 0.
at::Tensor seen_by(const heed::AttendOptions& options) {
  auto tokens = torch::randn({1, 1, 6, 16});
  auto weights = std::get<1>(heed::attend_with_weights(tokens, tokens, tokens, options));
  return (weights[0][0] > 0).to(torch::kInt);
}

void windows() {
  // Each token sees two tokens before it and one after it.
  auto options = heed::AttendOptions().left_window(2).right_window(1);
  std::cout << "two sides\n" << seen_by(options) << '\n';
  // The first token sees every token, and every token sees it.
  options.global_tokens(torch::arange(6) == 0);
  std::cout << "a global token\n" << seen_by(options) << '\n';
}

void lengths() {
  auto x = torch::randn({2, 8, 6, 16});
  // The second sequence has 4 tokens, and 2 of padding.
  auto lengths = torch::tensor({6, 4});
  auto options = heed::AttendOptions().query_lengths(lengths).key_lengths(lengths).causal(true);
  auto output = heed::attend(x, x, x, options);

  auto alone = x.slice(0, 1).slice(2, 0, 4);
  auto expected = heed::attend(alone, alone, alone, heed::AttendOptions().causal(true));
  std::cout << "padded as alone: "
            << torch::allclose(output.slice(0, 1).slice(2, 0, 4), expected, 1e-4, 1e-5) << '\n';
}

void bias() {
  auto query = torch::randn({2, 8, 6, 16}), key = torch::randn({2, 8, 6, 16});
  auto value = torch::randn({2, 8, 6, 16});
  auto learned = torch::zeros({1, 8, 6, 6}, torch::requires_grad());  // [B or 1, H or 1, L, S]
  heed::attend(query, key, value, heed::AttendOptions().bias(learned)).sum().backward();
  std::cout << "gradient of the bias " << learned.grad().sizes() << '\n';

  // T5's learned bias: a number for each head and bucket of distances.
  heed::RelativePositionBias buckets(/*head_num=*/8);
  auto [table, places] = buckets->relative();
  auto by_distance = heed::AttendOptions().relative_bias(table).relative_positions(places);
  heed::attend(query, key, value, by_distance).sum().backward();
  std::cout << "gradient of the buckets " << buckets->weight.grad().sizes() << '\n';

  auto floating = torch::full({6, 6}, -std::numeric_limits<float>::infinity()).triu(1);
  try {
    heed::attend(query, key, value, heed::AttendOptions().mask(floating));
  } catch (const c10::ValueError& error) {
    std::cout << error.what_without_backtrace() << '\n';
  }
}

void rotary() {
  auto query = torch::randn({2, 8, 6, 16});

  // An image of 2 x 3 patches: 4 pairs of a head are rotated by the row, 4 by the column.
  auto patch = torch::arange(6);
  auto places = torch::stack({patch.floor_divide(3), patch.remainder(3)}, 1);  // [L, 2]
  heed::RotaryEmbedding axial(
      heed::RotaryEmbeddingOptions(/*head_dim=*/16).sections({4, 4}).restart_sections(true));
  auto rotated = axial->forward(query, places);

  // Angles that are learned.
  auto angles = torch::randn({1, 1, 6, 8}, torch::requires_grad());  // [B or 1, 1, L, R / 2]
  axial->rotate(query, {angles.cos(), angles.sin()}).sum().backward();
  std::cout << "gradient of the angles " << angles.grad().sizes() << '\n';
}

}  // namespace

void conventions() {
  run(masks, mask_batches, masks_by_rule, positions, windows, lengths, bias, rotary);
}

}  // namespace guide
