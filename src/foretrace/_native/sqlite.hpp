// Columns of one table of an SQLite file, read from its pages: a b-tree whose leaves hold the rows in order of their number.
// The format: https://www.sqlite.org/fileformat2.html. Only what profilers write is read: UTF-8, no virtual tables, no key of
// the user's own; ingest/sqlite_tables.py sees to that. Everything in a file is checked before it is believed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#ifndef _WIN32
#include <unistd.h>
#endif

namespace foretrace {

struct SqliteFault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class TableScan {
 public:
  TableScan(int file, uint32_t page_bytes, uint32_t reserved, uint64_t file_bytes, uint32_t root,
            std::vector<int32_t> ints, std::vector<int32_t> texts)
      : file_(file), page_bytes_(page_bytes), usable_(page_bytes - reserved) {
    if (page_bytes < 512 || page_bytes > 65536 || reserved > page_bytes - 480) throw SqliteFault("bad page size");
    pages_ = file_bytes / page_bytes;
    ints_.resize(ints.size());
    texts_.resize(texts.size());
    int32_t most = -1;
    for (int32_t column : ints) most = column > most ? column : most;
    for (int32_t column : texts) most = column > most ? column : most;
    if (most > 4000) throw SqliteFault("too many columns");
    places_.assign(size_t(most + 1), {kNowhere, 0});
    for (size_t i = 0; i < ints.size(); ++i) places_[size_t(ints[i])] = {kInteger, uint32_t(i)};
    for (size_t i = 0; i < texts.size(); ++i) places_[size_t(texts[i])] = {kText, uint32_t(i)};
    window_.resize(kWindow);
    open(root);
  }

  // Reads up to about so many rows; false where there are none left.
  bool read(size_t rows) {
    for (auto& column : ints_) column.clear();
    for (auto& column : texts_) column.clear();
    count_ = 0;
    while (count_ < rows && !path_.empty()) step();
    return count_ > 0;
  }

  size_t count() const { return count_; }
  const std::vector<std::vector<int64_t>>& ints() const { return ints_; }
  // Texts of a column one after another, each behind a zero byte: \0T for a text, \0N for none.
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  enum Kind : uint8_t { kNowhere, kInteger, kText };
  struct Place {
    Kind kind;
    uint32_t at;
  };
  struct Level {
    uint32_t page;
    uint32_t next;  // cell, or child
    uint32_t cells;
    std::vector<uint32_t> children;  // of an inner page: read once, so that it need not be looked at between its leaves
  };
  static constexpr size_t kWindow = 1 << 20, kFew = 1 << 16;  // bytes; a page has at most as many
  static constexpr size_t kDeepest = 24;
  static constexpr uint64_t kLongest = 1 << 24;  // of one row

  const uint8_t* page(uint32_t number) {
    if (number == 0 || number > pages_) throw SqliteFault("a page that is not there");
    const uint64_t at = uint64_t(number - 1) * page_bytes_;
    if (at < from_ || at + page_bytes_ > from_ + held_) {
      // Pages that follow one another are read many at once; where they do not, few.
      ahead_ = at == from_ + held_ ? std::min(kWindow, 4 * ahead_) : kFew;
      from_ = at;
      held_ = 0;
#ifndef _WIN32
      while (held_ < ahead_) {
        const ssize_t got = pread(file_, window_.data() + held_, ahead_ - held_, off_t(at + held_));
        if (got <= 0) break;
        held_ += size_t(got);
      }
#endif
      if (held_ < page_bytes_) throw SqliteFault("the file ends within a page");
    }
    return window_.data() + (at - from_);
  }

  static uint32_t two(const uint8_t* p) { return uint32_t(p[0]) << 8 | p[1]; }
  static uint32_t four(const uint8_t* p) { return two(p) << 16 | two(p + 2); }

  static uint64_t varint(const uint8_t*& p, const uint8_t* end) {
    uint64_t value = 0;
    for (int i = 0; i < 9; ++i) {
      if (p >= end) throw SqliteFault("a number beyond its page");
      const uint8_t byte = *p++;
      if (i == 8) return value << 8 | byte;
      value = value << 7 | (byte & 0x7f);
      if (!(byte & 0x80)) break;
    }
    return value;
  }

  void open(uint32_t number) {
    if (path_.size() >= kDeepest || ++visited_ > pages_) throw SqliteFault("a tree that runs in circles");
    const uint8_t* p = page(number) + (number == 1 ? 100 : 0);
    const uint32_t cells = two(p + 3);
    if (p[0] == 13) {
      path_.push_back({number, 0, cells, {}});
    } else if (p[0] == 5) {
      const uint8_t* start = p - (number == 1 ? 100 : 0);
      std::vector<uint32_t> children;
      for (uint32_t i = 0; i < cells; ++i) children.push_back(four(cell(start, number, 12, i)));
      children.push_back(four(p + 8));
      path_.push_back({number, 0, cells, std::move(children)});
    } else {
      throw SqliteFault("a page of another kind");
    }
  }

  const uint8_t* cell(const uint8_t* start, uint32_t number, uint32_t head, uint32_t index) const {
    const uint32_t header = (number == 1 ? 100 : 0) + head;
    if (header + 2 * index + 2 > usable_) throw SqliteFault("a cell beyond its page");
    const uint32_t at = two(start + header + 2 * index);
    if (at < header || at + 4 > usable_) throw SqliteFault("a cell beyond its page");
    return start + at;
  }

  void step() {
    Level& level = path_.back();
    if (!level.children.empty()) {
      if (level.next == level.children.size()) return path_.pop_back();
      return open(level.children[level.next++]);
    }
    // Rows that overflow move the window: the page is asked for again with each.
    for (; level.next < level.cells; ++level.next) {
      const uint8_t* start = page(level.page);
      row(cell(start, level.page, 8, level.next), start + usable_);
    }
    path_.pop_back();
  }

  void row(const uint8_t* p, const uint8_t* end) {
    const uint64_t size = varint(p, end);
    varint(p, end);  // the row's number
    if (size > kLongest) throw SqliteFault("a row that is too long");
    const uint64_t most = usable_ - 35;
    if (size <= most) {
      if (p + size > end) throw SqliteFault("a row beyond its page");
      return record(p, p + size);
    }
    const uint64_t least = (usable_ - 12) * 32 / 255 - 23;
    uint64_t here = least + (size - least) % (usable_ - 4);
    if (here > most) here = least;
    if (p + here + 4 > end) throw SqliteFault("a row beyond its page");
    whole_.assign(p, p + here);
    uint32_t next = four(p + here);
    while (whole_.size() < size) {
      if (++visited_ > 2 * pages_ + 16) throw SqliteFault("a row that runs in circles");
      const uint8_t* more = page(next);
      const uint64_t left = size - whole_.size();
      const uint64_t take = left < usable_ - 4 ? left : usable_ - 4;
      whole_.insert(whole_.end(), more + 4, more + 4 + take);
      next = four(more);
    }
    record(whole_.data(), whole_.data() + size);
  }

  void record(const uint8_t* p, const uint8_t* end) {
    const uint8_t* head = p;
    const uint64_t header = varint(head, end);
    if (header > uint64_t(end - p)) throw SqliteFault("a row's header beyond the row");
    const uint8_t* const head_end = p + header;
    const uint8_t* body = head_end;
    size_t column = 0;
    for (; head < head_end && column < places_.size(); ++column) {
      const uint64_t type = varint(head, head_end);
      static const uint8_t kSizes[] = {0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0};
      const uint64_t size = type < 12 ? kSizes[type] : (type - 12) / 2;
      if (size > uint64_t(end - body)) throw SqliteFault("a value beyond its row");
      const Place place = places_[column];
      if (place.kind == kInteger) {
        ints_[place.at].push_back(integer(body, type));
      } else if (place.kind == kText) {
        text(texts_[place.at], body, type, size);
      }
      body += size;
    }
    for (; column < places_.size(); ++column) {
      const Place place = places_[column];
      if (place.kind == kInteger) ints_[place.at].push_back(INT64_MIN);
      if (place.kind == kText) texts_[place.at].append("\0N", 2);
    }
    ++count_;
  }

  static int64_t integer(const uint8_t* p, uint64_t type) {
    if (type == 8 || type == 9) return int64_t(type - 8);
    if (type < 1 || type > 6) return INT64_MIN;
    static const uint8_t kSizes[] = {0, 1, 2, 3, 4, 6, 8};
    uint64_t value = p[0] & 0x80 ? ~uint64_t(0) : 0;
    for (int i = 0; i < kSizes[type]; ++i) value = value << 8 | p[i];
    return int64_t(value);
  }

  static void text(std::string& to, const uint8_t* p, uint64_t type, uint64_t size) {
    if (type < 13 || type % 2 == 0) {
      to.append("\0N", 2);
      return;
    }
    to.append("\0T", 2);
    const void* zero = std::memchr(p, 0, size);  // what separates texts cannot stand in one
    to.append(reinterpret_cast<const char*>(p), zero ? size_t(static_cast<const uint8_t*>(zero) - p) : size_t(size));
  }

  int file_;
  uint32_t page_bytes_, usable_;
  uint64_t pages_ = 0, visited_ = 0;
  std::vector<Place> places_;
  std::vector<uint8_t> window_, whole_;
  uint64_t from_ = 0, held_ = 0;
  size_t ahead_ = kFew;
  std::vector<Level> path_;
  std::vector<std::vector<int64_t>> ints_;
  std::vector<std::string> texts_;
  size_t count_ = 0;
};

}  // namespace foretrace
