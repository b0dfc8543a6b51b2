#pragma once

#include <heed/attend.h>
#include <heed/attention.h>
#include <heed/cost.h>
#include <heed/group_query_attention.h>
#include <heed/kv_cache.h>
#include <heed/masks.h>
#include <heed/multi_head_attention.h>
#include <heed/name_maps.h>
#include <heed/residual_attention.h>
#include <heed/rotary_embedding.h>
#include <heed/scaled_dot_product_attention.h>
#include <heed/self_attention.h>
#include <heed/weights.h>
