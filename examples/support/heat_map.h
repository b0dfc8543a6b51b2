#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

namespace heed::examples {

/// What a heat map says beside the weights, in UTF-8. Long words end in an ellipsis, and where
/// cells are small not each of them has a label.
struct HeatMapOptions {
  std::vector<std::string> titles;        ///< H, above the heads; "head 1", ... when empty
  std::vector<std::string> query_labels;  ///< L, beside the rows; none when empty
  std::vector<std::string> key_labels;    ///< S, under the columns; none when empty
  std::string query_name = "query";       ///< of the rows
  std::string key_name = "key";           ///< of the columns
  /// [L, W] in [0, 1], 1 black: stands at the left, its row i beside query i.
  std::optional<at::Tensor> picture;
  std::string picture_title;
  int panel = 256;  ///< the longer side of a head's matrix, about, in pixels
};

/// Writes attention weights [H, L, S] as a PNG: a matrix of cells for each head, side by side, one
/// row a query and one column a key, colored from 0 to the largest weight of all; gray where the
/// weight is NaN.
/// Throws std::runtime_error when the file cannot be written, or the picture would be wider or
/// higher than 32767 pixels.
void write_heat_map(const std::string& path, const at::Tensor& weights,
                    const HeatMapOptions& options = {});

}  // namespace heed::examples
