// The key-value path's operators: tensors to rows, positions to rows of the rotary table, slots to
// records. Everything is looked at before anything is written.
#include <limits>
#include <optional>
#include <tuple>

#include "path_job.h"
#include "tensors.h"

namespace latentkv {
namespace {

// A tensor's strides, broadcast to the leading sizes of `down`.
std::vector<int64_t> strides_for(const Tensor& tensor, const int64_t* sizes, int64_t leading,
                                 const char* name) {
  const auto its = tensor.sizes();
  const int64_t missing = leading - static_cast<int64_t>(its.size());
  STD_TORCH_CHECK(missing >= 0, "latentkv: ", name, " has too many dimensions");
  std::vector<int64_t> strides(static_cast<size_t>(leading), 0);
  for (int64_t d = missing; d < leading; ++d) {
    const int64_t size = its[static_cast<size_t>(d - missing)];
    STD_TORCH_CHECK(size == sizes[d] || size == 1, "latentkv: ", name, " doesn't fit down's rows");
    if (size != 1) strides[static_cast<size_t>(d)] = tensor.stride(d - missing);
  }
  return strides;
}

Rotation rotation_of(const std::string& name) {
  if (name.empty()) return Rotation::none;
  if (name == "half_each_step") return Rotation::half_each_step;
  if (name == "half_result") return Rotation::half_result;
  if (name == "interleaved_each_step") return Rotation::interleaved_each_step;
  STD_TORCH_CHECK(name == "interleaved_result", "latentkv: unknown rope");
  return Rotation::interleaved_result;
}

Rule rule_of(const std::string& name) {
  if (name == "act_quant") return Rule::act_quant;
  if (name == "flashmla") return Rule::flashmla;
  if (name == "vllm_fused") return Rule::vllm_fused;
  if (name == "vllm_cuda") return Rule::vllm_cuda;
  STD_TORCH_CHECK(name == "sglang", "latentkv: unknown rule");
  return Rule::sglang;
}

// The arguments that every operator of the path has.
struct Arguments {
  const Tensor& down;
  const Tensor& gain;
  const std::optional<Tensor>& positions;
  const std::optional<Tensor>& table;
  double eps;
  std::string order, rope, rule;
  int64_t group;
};

struct Prepared {
  PathJob job;
  std::vector<float> gain;  // widened, where that is what keeps the norm from being rounded
};

void check_table(const Arguments& a, int64_t key_width, Rotation rotation) {
  if (rotation == Rotation::none) return;
  STD_TORCH_CHECK(a.positions && a.table, "latentkv: a rotation needs positions and a table");
  const Tensor& table = *a.table;
  STD_TORCH_CHECK(table.scalar_type() == ScalarType::Float && table.is_cpu() && table.dim() == 2 &&
                      table.size(1) == key_width && table.is_contiguous() && key_width % 2 == 0,
                  "latentkv: table must be contiguous float32 [max_positions, key width]");
}

// Everything but where the rows go.
Prepared prepare(const Arguments& a, const Tensor* slots) {
  const Dtype in = dtype_of(a.down, "down"), gain_dtype = dtype_of(a.gain, "gain");
  const Order order = order_of(a.order);
  const Rotation rotation = rotation_of(a.rope);
  STD_TORCH_CHECK(a.down.is_cpu() && a.gain.is_cpu(),
                  "latentkv: down and gain must be on the same device");
  STD_TORCH_CHECK(a.down.dim() >= 1 && a.gain.dim() == 1,
                  "latentkv: down must have a dimension, and gain exactly one");
  const int64_t leading = a.down.dim() - 1, width = a.gain.size(0);
  const int64_t key_width = a.down.size(leading) - width;
  STD_TORCH_CHECK(width >= 1 && width <= (int64_t{1} << 24) && key_width >= 0 &&
                      key_width % 2 == 0,
                  "latentkv: gain must be as long as the latent, 1 to 2^24, and the key's width even");
  check_unit_stride(a.down, "down");
  check_unit_stride(a.gain, "gain");
  check_table(a, key_width, rotation);

  const int64_t* sizes = a.down.sizes().data();
  const int64_t* strides = a.down.strides().data();
  std::vector<int64_t> position_strides, slot_strides;
  const bool turns = rotation != Rotation::none;
  if (turns) position_strides = strides_for(*a.positions, sizes, leading, "positions");
  if (slots) {
    STD_TORCH_CHECK(slots->dim() == leading, "latentkv: slots must have one for each row of down");
    for (int64_t d = 0; d < leading; ++d) {
      STD_TORCH_CHECK(slots->size(d) == sizes[d], "latentkv: slots must have one for each row of down");
    }
    slot_strides = strides_for(*slots, sizes, leading, "slots");
  }
  Prepared prepared{
      PathJob{PathCall{},
              RowWalk<kOperands>(sizes,
                                 {strides, turns ? position_strides.data() : strides,
                                  slots ? slot_strides.data() : strides},
                                 leading),
              static_cast<const char*>(a.down.const_data_ptr()),
              turns ? Index(*a.positions, "positions") : Index(),
              slots ? Index(*slots, "slots") : Index(),
              turns, turns ? static_cast<const float*>(a.table->const_data_ptr()) : nullptr,
              turns ? a.table->size(0) : 0, std::numeric_limits<int64_t>::max(), Place{}, nullptr, 1,
              1},
      {}};
  PathJob& job = prepared.job;
  for (int64_t d = 0; d < leading; ++d) job.rows *= sizes[d];

  PathCall& call = job.call;
  call.in = in;
  call.latent = call.source = output_dtype(in, gain_dtype, order);
  call.key_width = key_width;
  call.turn = key_kernel(in, rotation);
  call.norm.width = width;
  call.norm.eps = checked_eps(a.eps);
  call.norm.gain = a.gain.const_data_ptr();
  call.quantised = !a.rule.empty();
  Dtype norm_in = in, norm_gain = gain_dtype;
  if (call.quantised) {
    STD_TORCH_CHECK(a.group >= 1 && width % a.group == 0,
                    "latentkv: group must divide the latent's width");
    call.quant = QuantCall{width, a.group, rule_of(a.rule)};
    if (call.quant.rule == Rule::vllm_fused) {
      // Before its last rounding the latent is what fp32 inputs, or an fp32 gain, would give.
      call.source = Dtype::fp32;
      if (order == Order::gain_then_cast) {
        norm_in = Dtype::fp32;
        call.widen = in != Dtype::fp32;
      } else if (gain_dtype != Dtype::fp32) {
        norm_gain = Dtype::fp32;
        prepared.gain.resize(static_cast<size_t>(width));
        widen_values(call.norm.gain, gain_dtype, prepared.gain.data(), width);
        call.norm.gain = prepared.gain.data();
      }
    }
    call.codes = quant_codes(call.source);
    call.values = quant_values(call.source, call.latent);
  }
  call.normalise = norm_kernel(norm_in, norm_gain, order, false);
  return prepared;
}

struct Compressed {
  Tensor latent, key;
  std::optional<Tensor> rstd;
};

Compressed compress(const Arguments& arguments, bool with_rstd) {
  Prepared prepared = prepare(arguments, nullptr);
  PathJob& job = prepared.job;
  PathCall& call = job.call;
  const Tensor& down = arguments.down;
  const int64_t leading = down.dim() - 1;
  std::vector<int64_t> sizes(down.sizes().begin(), down.sizes().end());
  const auto with_last = [&](int64_t last, Dtype dtype) {
    sizes[static_cast<size_t>(leading)] = last;
    return empty(sizes.data(), leading + 1, dtype);
  };
  Compressed out{with_last(call.norm.width, call.latent), with_last(call.key_width, call.in), {}};
  if (with_rstd) out.rstd = empty(sizes.data(), leading, Dtype::fp32);
  if (job.rows == 0) return out;
  job.place.latent = static_cast<char*>(out.latent.mutable_data_ptr());
  job.place.key = static_cast<char*>(out.key.mutable_data_ptr());
  job.place.latent_row = call.norm.width * size_of(call.latent);
  job.place.key_row = call.key_width * size_of(call.in);
  if (with_rstd) job.rstd = static_cast<float*>(out.rstd->mutable_data_ptr());
  call.norm.stream = streams(job.place.latent, job.rows, job.place.latent_row);
  call.stream_keys = streams(job.place.key, job.rows, job.place.key_row);
  job.run();
  return out;
}

// The bytes from a tensor's first element to behind its last.
std::pair<uintptr_t, uintptr_t> span_of(const Tensor& tensor, int64_t element) {
  const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  if (tensor.numel() == 0) return {begin, begin};
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  return {begin, begin + static_cast<uintptr_t>((last + 1) * element)};
}

int64_t element_size(const Tensor& tensor) {
  const ScalarType type = tensor.scalar_type();
  if (type == ScalarType::Byte) return 1;
  if (type == ScalarType::Long) return 8;
  return type == ScalarType::Float || type == ScalarType::Int ? 4 : 2;
}

void check_apart(const Tensor& cache, const Tensor& other, const char* name) {
  const auto ours = span_of(cache, element_size(cache)), its = span_of(other, element_size(other));
  STD_TORCH_CHECK(ours.second <= its.first || its.second <= ours.first ||
                      ours.first == ours.second || its.first == its.second,
                  "latentkv: cache and ", name, " share memory");
}

void write(const Arguments& arguments, const Tensor& slots, Tensor& cache) {
  Prepared prepared = prepare(arguments, &slots);
  PathJob& job = prepared.job;
  PathCall& call = job.call;
  STD_TORCH_CHECK(cache.is_cpu() && cache.dim() == 3 && cache.size(1) >= 1,
                  "latentkv: cache must be [blocks, block size, record] on the CPU, block size 1 or more");
  call.as_codes = cache.scalar_type() == ScalarType::Byte;
  int64_t size = 1, key_at = 0, width = 0;
  if (call.as_codes) {
    STD_TORCH_CHECK(call.quantised && call.in == Dtype::bf16 && call.norm.width % 4 == 0,
                    "latentkv: an fp8 cache takes bfloat16 rows, a scale rule and a latent width "
                    "divisible by 4");
    key_at = call.norm.width + call.norm.width / call.quant.group * 4;
    width = key_at + call.key_width * 2;
  } else {
    const Dtype dtype = dtype_of(cache, "cache");
    STD_TORCH_CHECK(dtype == call.latent && dtype == call.in,
                    "latentkv: cache must have the dtype of down and of its latent");
    size = size_of(dtype);
    key_at = call.norm.width * size;
    width = call.norm.width + call.key_width;
  }
  const int64_t blocks = cache.size(0), block_size = cache.size(1);
  STD_TORCH_CHECK(cache.size(2) == width, "latentkv: a record of this cache must have ", width,
                  " elements");
  const int64_t record = block_size > 1 ? cache.stride(1) : width;
  const int64_t block = blocks > 1 ? cache.stride(0) : 0;
  STD_TORCH_CHECK((cache.stride(2) == 1 || width == 1) && record >= width &&
                      (blocks <= 1 || block >= (block_size - 1) * record + width),
                  "latentkv: the records of cache overlap, or their elements lie apart");
  STD_TORCH_CHECK(record % width == 0 && block % width == 0,
                  "latentkv: cache must have strides of whole records");
  check_apart(cache, arguments.down, "down");
  check_apart(cache, arguments.gain, "gain");
  check_apart(cache, slots, "slots");
  if (job.turns) {
    check_apart(cache, *arguments.positions, "positions");
    check_apart(cache, *arguments.table, "table");
  }
  job.capacity = blocks * block_size;
  job.place.block_size = block_size;
  job.place.block = block * size;
  job.place.record = record * size;
  if (job.rows == 0) return;
  job.place.latent = static_cast<char*>(cache.mutable_data_ptr());
  job.place.key = job.place.latent + key_at;
  call.norm.stream = !call.quantised && job.place.block % kStreamAlign == 0 &&
                     key_at % kStreamAlign == 0 &&
                     streams(job.place.latent, job.rows, job.place.record);
  call.stream_keys = call.norm.stream && call.key_width * size % kStreamAlign == 0;
  job.run();
}

std::tuple<Tensor, Tensor> compress_kv(const Tensor& down, const Tensor& gain,
                                       std::optional<Tensor> positions, std::optional<Tensor> table,
                                       double eps, StringHandle order, StringHandle rope,
                                       StringHandle rule, int64_t group) {
  Compressed out = compress(
      {down, gain, positions, table, eps, take(order), take(rope), take(rule), group}, false);
  return {out.latent, out.key};
}

std::tuple<Tensor, Tensor, Tensor> compress_kv_fwd(const Tensor& down, const Tensor& gain,
                                                   std::optional<Tensor> positions,
                                                   std::optional<Tensor> table, double eps,
                                                   StringHandle order, StringHandle rope,
                                                   StringHandle rule, int64_t group) {
  Compressed out = compress(
      {down, gain, positions, table, eps, take(order), take(rope), take(rule), group}, true);
  return {out.latent, out.key, *out.rstd};
}

void write_kv(Tensor cache, const Tensor& slots, const Tensor& down, const Tensor& gain,
              std::optional<Tensor> positions, std::optional<Tensor> table, double eps,
              StringHandle order, StringHandle rope, StringHandle rule, int64_t group) {
  write({down, gain, positions, table, eps, take(order), take(rope), take(rule), group}, slots,
        cache);
}

}  // namespace
}  // namespace latentkv

STABLE_TORCH_LIBRARY_IMPL(latentkv, CPU, library) {
  library.impl("compress_kv", TORCH_BOX(&latentkv::compress_kv));
  library.impl("compress_kv_fwd", TORCH_BOX(&latentkv::compress_kv_fwd));
  library.impl("write_kv", TORCH_BOX(&latentkv::write_kv));
}
