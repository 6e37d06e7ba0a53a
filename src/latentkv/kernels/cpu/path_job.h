// One call's rows, shared among threads: each row's position and slot, and where it goes.
#pragma once

#include <atomic>

#include "ieee_mode.h"
#include "path.h"
#include "row_walk.h"
#include "tensors.h"

namespace latentkv {

enum PathOperand { kDown, kPositions, kSlots, kOperands };

// int32 or int64, one for each row.
struct Index {
  const char* data = nullptr;  // null: absent
  bool wide = false;

  Index() = default;
  Index(const Tensor& tensor, const char* name)
      : data(static_cast<const char*>(tensor.const_data_ptr())),
        wide(tensor.scalar_type() == ScalarType::Long) {
    STD_TORCH_CHECK(wide || tensor.scalar_type() == ScalarType::Int, "latentkv: ", name,
                    " must be int32 or int64");
    STD_TORCH_CHECK(tensor.is_cpu(), "latentkv: ", name, " must be on the CPU, as down is");
  }

  int64_t at(int64_t offset) const {
    if (!wide) return reinterpret_cast<const int32_t*>(data)[offset];
    return reinterpret_cast<const int64_t*>(data)[offset];
  }
};

// Where rows go, by their number or by their slot, in bytes.
struct Place {
  char* latent;
  char* key;
  int64_t latent_row;  // of new tensors: one row each
  int64_t key_row;
  int64_t block_size;  // of a cache: slot / block_size and slot % block_size
  int64_t block;
  int64_t record;
};

// Finds the places of a thread's rows. Slots mostly follow one another, so the last one's block is
// remembered: a division takes 4 ns.
class Places {
 public:
  explicit Places(const Place& place) : place_(place) {}

  PathRow row(int64_t row, int64_t slot) {
    PathRow to{};
    if (place_.block_size == 0) {
      to.latent = place_.latent + row * place_.latent_row;
      to.key = place_.key + row * place_.key_row;
      return to;
    }
    if (slot < first_ || slot - first_ >= place_.block_size) {
      const int64_t block = slot / place_.block_size;
      first_ = block * place_.block_size;
      offset_ = block * place_.block;
    }
    const int64_t offset = offset_ + (slot - first_) * place_.record;
    to.latent = place_.latent + offset;
    to.key = place_.key + offset;
    return to;
  }

 private:
  const Place& place_;
  int64_t first_ = 0;  // slot of the block, and where it lies
  int64_t offset_ = 0;
};

// All of one call. Threads take shares of the rows, or of the slots where two rows may have one slot.
struct PathJob {
  PathCall call;
  RowWalk<kOperands> walk;
  const char* down;
  Index positions, slots;
  bool turns;  // there are positions and a table, which may be empty
  const float* table;
  int64_t max_positions;
  int64_t capacity;
  Place place;
  float* rstd;
  int64_t rows;
  int64_t shares;  // more than 1: rows are shared by slot, among this many

  // Calls visit(row, offset of down, position, slot) for each row with a slot.
  template <class Visit>
  void each(int64_t begin, int64_t end, Visit visit) const {
    const auto& strides = walk.strides();
    for (int64_t row = begin; row < end;) {
      const auto run = walk.run(row, end);
      for (int64_t i = 0; i < run.rows; ++i, ++row) {
        const int64_t slot = slots.data ? slots.at(run.offsets[kSlots] + i * strides[kSlots]) : 0;
        if (slot < 0) continue;
        const int64_t position =
            turns ? positions.at(run.offsets[kPositions] + i * strides[kPositions]) : 0;
        visit(row, run.offsets[kDown] + i * strides[kDown], position, slot);
      }
    }
  }

  // Refuses what lies outside; returns whether each slot is larger than those before it.
  bool check() const {
    bool inside = true, rising = true;
    int64_t last = -1;
    each(0, rows, [&](int64_t, int64_t, int64_t position, int64_t slot) {
      inside &= !turns || (position >= 0 && position < max_positions);
      inside &= slot < capacity;
      rising &= slot > last;
      last = slot;
    });
    STD_TORCH_CHECK(inside, "latentkv: a position or a slot is out of range");
    return rising;
  }

  void rows_of(int64_t begin, int64_t end, int64_t share) const {
    const IeeeMode mode;
    PathRows out(call);
    Places places(place);
    const int64_t bytes = size_of(call.in);
    each(begin, end, [&](int64_t row, int64_t offset, int64_t position, int64_t slot) {
      if (shares > 1 && share_of(slot) != share) return;
      PathRow one = places.row(row, slot);
      one.x = down + offset * bytes;
      one.cos = turns ? table + position * call.key_width : nullptr;
      one.rstd = rstd ? rstd + row : nullptr;
      out.add(one);
    });
    out.flush();
    if (call.norm.stream || call.stream_keys) std::atomic_thread_fence(std::memory_order_seq_cst);  // see core.h
  }

  // Which share a slot belongs to: spread evenly, whatever the slots' step.
  int64_t share_of(int64_t slot) const {
    const uint64_t mixed = static_cast<uint64_t>(slot) * 0x9e3779b97f4a7c15u;
    return static_cast<int64_t>((mixed >> 32) % static_cast<uint64_t>(shares));
  }

  void run() {
    const int64_t grain = std::max<int64_t>(1, kElementsPerThread / call.norm.width);
    const bool rising = slots.data || turns ? check() : true;
    if (rows <= grain) {
      rows_of(0, rows, 0);
    } else if (rising || !slots.data) {
      STABLE_TORCH_ERROR_CODE_CHECK(torch_parallel_for(
          0, rows, grain,
          [](int64_t begin, int64_t end, void* job) {
            static_cast<const PathJob*>(job)->rows_of(begin, end, 0);
          },
          this));
    } else {
      uint32_t threads = 1;
      STABLE_TORCH_ERROR_CODE_CHECK(torch_get_num_threads(&threads));
      shares = std::min<int64_t>(threads, (rows + grain - 1) / grain);
      STABLE_TORCH_ERROR_CODE_CHECK(torch_parallel_for(
          0, shares, 1,
          [](int64_t begin, int64_t end, void* job) {
            const auto* it = static_cast<const PathJob*>(job);
            for (int64_t share = begin; share < end; ++share) it->rows_of(0, it->rows, share);
          },
          this));
    }
  }
};

}  // namespace latentkv
