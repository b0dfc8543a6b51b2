// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

namespace heed::examples {

/// The texts of a heat map, in UTF-8. Long words end in an ellipsis; if cells are small, not every
/// cell has a label.
struct HeatMapOptions {
  std::vector<std::string> titles;        ///< H titles above the heads; if empty, "head 1", ...
  std::vector<std::string> query_labels;  ///< L labels beside the rows, or none
  std::vector<std::string> key_labels;    ///< S labels below the columns, or none
  std::string query_name = "query";       ///< the name of the rows
  std::string key_name = "key";           ///< the name of the columns
  /// A picture [L, W] in [0, 1], where 1 is black. It is drawn at the left, with row i beside query
  /// i.
  std::optional<at::Tensor> picture;
  std::string picture_title;
  int panel = 256;  ///< approximate longer side of a head's matrix, in pixels
};

/// Writes attention weights [H, L, S] as a PNG. Each head is a matrix of cells, with one row per
/// query and one column per key; the matrices are side by side. Colors range from 0 to the largest
/// weight of all heads; NaN is gray.
/// Throws std::runtime_error when the file cannot be written, or the picture would be wider or
/// higher than 32767 pixels.
void write_heat_map(const std::string& path, const at::Tensor& weights,
                    const HeatMapOptions& options = {});

}  // namespace heed::examples
