// All kernels, for one kind of CPU: native.cpp includes this once for each, with FQ_VARIANT naming it.

#define FQ_JOINED(variant, name) fq_##variant##_##name
#define FQ_EXPANDED(variant, name) FQ_JOINED(variant, name)
#define FQ_NAME(name) FQ_EXPANDED(FQ_VARIANT, name)

#include "native_wide.h"
#include "native_pack.h"
#include "native_quantile.h"
#include "native_norm.h"
#include "native_bits.h"
#include "native_step.h"
#include "native_conv.h"
#include "native_sums.h"

#undef FQ_INLINE
#undef FQ_NAME
#undef FQ_EXPANDED
#undef FQ_JOINED
