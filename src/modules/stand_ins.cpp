#include <heed/stand_ins.h>

namespace heed {

LinearStandIn::~LinearStandIn() = default;

EmbeddingStandIn::~EmbeddingStandIn() = default;

}  // namespace heed
