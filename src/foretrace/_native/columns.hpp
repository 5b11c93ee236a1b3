// Growing arrays and text tables. Growth never copies on Linux (mremap), so a column's peak is its own size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace foretrace {

constexpr uint32_t kNullU32 = 0xFFFFFFFFu;
constexpr uint64_t kNullU64 = 0xFFFFFFFFFFFFFFFFull;
constexpr int32_t kNullI32 = INT32_MIN;
constexpr int64_t kNullI64 = INT64_MIN;

// A block of memory that gives its pages back to the system as soon as it is freed.
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  Memory(Memory&& other) noexcept { swap(other); }
  Memory& operator=(Memory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Memory() { release(); }

  void swap(Memory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
  char* data() const { return data_; }
  size_t size() const { return size_; }

  void resize(size_t size) {
    if (size <= size_) return;
#ifdef __linux__
    if (size >= kMapped) {
      // A multiple of large pages, of which only what is written becomes memory: Linux then places the block at their borders, and
      // moves it without splitting them.
      const size_t unit = size >= kHuge ? kLargePage : kPage;
      size = (size + unit - 1) & ~(unit - 1);
      void* moved;
      if (size_ >= kMapped) {
        moved = mremap(data_, size_, size, MREMAP_MAYMOVE);
        if (moved == MAP_FAILED) throw std::bad_alloc();
      } else {
        moved = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (moved == MAP_FAILED) throw std::bad_alloc();
        if (size_) std::memcpy(moved, data_, size_);
        std::free(data_);
      }
      data_ = static_cast<char*>(moved);
      size_ = size;
#ifdef MADV_HUGEPAGE
      if (size >= kHuge) madvise(data_, size_, MADV_HUGEPAGE);
#endif
      return;
    }
#endif
    void* moved = std::realloc(data_, size);
    if (!moved) throw std::bad_alloc();
    data_ = static_cast<char*>(moved);
    size_ = size;
  }

  // Asks for the pages of the first bytes at once: all of them are about to be written, and a fault each costs more. What does not
  // fill a large page gets small ones.
  void populate(size_t bytes) {
#if defined(__linux__) && defined(MADV_POPULATE_WRITE)
    if (size_ < kMapped) return;
#ifdef MADV_NOHUGEPAGE
    const size_t filled = bytes & ~(kLargePage - 1);
    if (size_ >= kHuge && filled < size_) madvise(data_ + filled, size_ - filled, MADV_NOHUGEPAGE);
#endif
    madvise(data_, (bytes + kPage - 1) & ~(kPage - 1), MADV_POPULATE_WRITE);
#endif
  }

  // Gives back the pages behind the first bytes: a large page that is not full holds up to 2 MB for nothing.
  void trim(size_t bytes) {
#ifdef __linux__
    const size_t used = (bytes + kPage - 1) & ~(kPage - 1);
    if (size_ >= kHuge && used < size_) madvise(data_ + used, size_ - used, MADV_DONTNEED);
#endif
  }

  void release() {
    if (!data_) return;
#ifdef __linux__
    if (size_ >= kMapped) {
      munmap(data_, size_);
    } else {
      std::free(data_);
    }
#else
    std::free(data_);
#endif
    data_ = nullptr;
    size_ = 0;
  }

 private:
  static constexpr size_t kMapped = size_t(1) << 18;
  static constexpr size_t kPage = 4096;
  static constexpr size_t kLargePage = size_t(2) << 20;  // one fault instead of 512
  static constexpr size_t kHuge = 2 * kLargePage;  // from here on a block asks for large pages
  char* data_ = nullptr;
  size_t size_ = 0;
};

template <class T>
class Column {
 public:
  size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  T* data() { return reinterpret_cast<T*>(memory_.data()); }
  const T* data() const { return reinterpret_cast<const T*>(memory_.data()); }
  T& operator[](size_t i) { return data()[i]; }
  const T& operator[](size_t i) const { return data()[i]; }
  const T& back() const { return data()[count_ - 1]; }

  void push(T value) {
    if ((count_ + 1) * sizeof(T) > memory_.size()) grow(count_ + 1);
    data()[count_++] = value;
  }
  void pop() { --count_; }
  void resize(size_t count) {
    grow(count);
    count_ = count;
  }
  // For columns that will be written from end to end.
  void allocate(size_t count) {
    resize(count);
    memory_.populate(count * sizeof(T));
  }
  void fill(size_t count, T value) {
    allocate(count);
    for (size_t i = 0; i < count; ++i) data()[i] = value;
  }
  void extend(size_t count, T value) {
    grow(count_ + count);
    for (const size_t end = count_ + count; count_ < end;) data()[count_++] = value;
  }
  void append(const Column& other) {
    if (other.empty()) return;
    grow(count_ + other.count_);
    std::memcpy(data() + count_, other.data(), other.count_ * sizeof(T));
    count_ += other.count_;
    memory_.trim(count_ * sizeof(T));
  }
  void clear() { count_ = 0; }
  void release() {
    memory_.release();
    count_ = 0;
  }
  Memory take() {
    count_ = 0;
    return std::move(memory_);
  }

 private:
  void grow(size_t count) {
    size_t bytes = count * sizeof(T);
    if (bytes <= memory_.size()) return;
    size_t wanted = memory_.size() + memory_.size() / 2;
    memory_.resize(bytes > wanted ? bytes : wanted);
  }
  Memory memory_;
  size_t count_ = 0;
};

// A column that costs nothing until it holds something other than null.
template <class T>
class SparseColumn {
 public:
  explicit SparseColumn(T null) : null_(null) {}
  size_t size() const { return count_; }
  void push(T value) {
    if (values_.empty()) {
      if (is_null(value)) {
        ++count_;
        return;
      }
      values_.fill(count_, null_);
    }
    values_.push(value);
    ++count_;
  }
  T operator[](size_t i) const { return values_.empty() ? null_ : values_[i]; }
  T back() const { return (*this)[count_ - 1]; }
  bool recorded() const { return !values_.empty(); }
  void append(const SparseColumn& other) {
    if (!other.values_.empty() && values_.empty()) values_.fill(count_, null_);
    count_ += other.count_;
    if (!other.values_.empty()) values_.append(other.values_);
    else if (!values_.empty()) values_.extend(other.count_, null_);
  }
  void release() {
    values_.release();
    count_ = 0;
  }

 private:
  bool is_null(T value) const { return value == null_ || (value != value && null_ != null_); }
  T null_;
  size_t count_ = 0;
  Column<T> values_;
};

// Distinct texts, numbered in order of first use.
class Texts {
 public:
  Texts() { slots_.fill(1024, Slot{0, 0}); }
  size_t size() const { return ends_.size(); }
  const char* text(size_t code) const { return pool_.data() + begin(code); }
  size_t length(size_t code) const { return ends_[code] - begin(code); }

  // The number of a text, or kNullU32. `tag` keeps apart texts that look the same and mean different things.
  uint32_t find(char tag, const char* text, size_t length) const {
    const uint64_t hash = hash_of(tag, text, length);
    const Slot& slot = slots_[slot_of(hash, tag, text, length)];
    return slot.code ? slot.code - 1 : kNullU32;
  }

  uint32_t intern(char tag, const char* text, size_t length) {
    const uint64_t hash = hash_of(tag, text, length);
    const size_t at = slot_of(hash, tag, text, length);
    if (slots_[at].code) return slots_[at].code - 1;
    const uint32_t code = static_cast<uint32_t>(ends_.size());
    const size_t start = pool_.size();
    pool_.resize(start + length + 1);
    pool_[start] = tag;
    std::memcpy(pool_.data() + start + 1, text, length);
    ends_.push(pool_.size());
    slots_[at] = Slot{code + 1, static_cast<uint32_t>(hash >> 32)};
    if (2 * ends_.size() > slots_.size()) rehash();
    return code;
  }

 private:
  struct Slot {
    uint32_t code;  // 1 + number; 0 is free
    uint32_t mark;
  };

  size_t begin(size_t code) const { return code ? ends_[code - 1] : 0; }

  // The slot that holds the text, or the free one where it belongs.
  size_t slot_of(uint64_t hash, char tag, const char* text, size_t length) const {
    const uint32_t mark = static_cast<uint32_t>(hash >> 32);
    const size_t mask = slots_.size() - 1;
    size_t at = hash & mask;
    for (; slots_[at].code; at = (at + 1) & mask) {
      const uint32_t code = slots_[at].code - 1;
      if (slots_[at].mark == mark && this->length(code) == length + 1 && this->text(code)[0] == tag &&
          std::memcmp(this->text(code) + 1, text, length) == 0) {
        break;
      }
    }
    return at;
  }

  static uint64_t hash_of(char tag, const char* text, size_t length) {
    uint64_t hash = (length + 0x9E3779B97F4A7C15ull) ^ (uint64_t(uint8_t(tag)) << 56);
    while (length >= 8) {
      uint64_t word;
      std::memcpy(&word, text, 8);
      hash = (hash ^ word) * 0x9FB21C651E98DF25ull;
      hash ^= hash >> 29;
      text += 8;
      length -= 8;
    }
    uint64_t word = 0;
    std::memcpy(&word, text, length);
    hash = (hash ^ word) * 0x9FB21C651E98DF25ull;
    hash ^= hash >> 32;
    hash *= 0xD6E8FEB86659FD93ull;
    return hash ^ (hash >> 29);
  }

  void rehash() {
    Column<Slot> slots;
    slots.fill(slots_.size() * 2, Slot{0, 0});
    const size_t mask = slots.size() - 1;
    for (size_t code = 0; code < ends_.size(); ++code) {
      const uint64_t hash = hash_of(text(code)[0], text(code) + 1, length(code) - 1);
      size_t at = hash & mask;
      while (slots[at].code) at = (at + 1) & mask;
      slots[at] = Slot{static_cast<uint32_t>(code) + 1, static_cast<uint32_t>(hash >> 32)};
    }
    slots_ = std::move(slots);
  }

  Column<char> pool_;
  Column<uint64_t> ends_;
  Column<Slot> slots_;
};

}  // namespace foretrace
