// Tokens of JSON, read leniently: the same rules as ingest/lenient.py, which says why.
#pragma once

#include <cstdint>
#include <cstring>

namespace foretrace {

enum class Status : uint8_t { kOk, kIncomplete, kDamaged };
enum class Type : uint8_t { kString, kInteger, kNumber, kTrue, kFalse, kNull, kWord, kContainer };

enum Note : uint8_t { kBareWord = 1, kBadEscape = 2, kRawQuote = 4, kControl = 8 };

constexpr int kMaxDepth = 64;
constexpr size_t kMaxString = size_t(1) << 20;
constexpr size_t kPadding = 64;  // readable bytes behind every buffer

// A value as text: without its quotes if a string, else whole.
struct Token {
  const char* text;
  uint32_t length;
  Type type;
};

// Part by part: a copy of what was put together elsewhere makes the processor wait for it.
inline void set(Token& token, const char* text, size_t length, Type type) {
  token.text = text;
  token.length = uint32_t(length);
  token.type = type;
}

// The phase of an event, a letter or a bracket, also where it is written as an escape; 0 if the value is none.
inline char phase_letter(const Token& value) {
  unsigned letter = 0;
  if (value.type != Type::kString) return 0;
  if (value.length == 1) {
    letter = uint8_t(value.text[0]);
  } else if (value.length == 6 && !std::memcmp(value.text, "\\u00", 4)) {
    for (const char* digit = value.text + 4; digit < value.text + 6; ++digit) {
      const char c = *digit | 0x20;
      if (!((c >= '0' && c <= '9' && *digit == c) || (c >= 'a' && c <= 'f'))) return 0;
      letter = letter * 16 + unsigned(c <= '9' ? c - '0' : c - 'a' + 10);
    }
  }
  const bool known = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') || letter == '(' || letter == ')';
  return known ? char(letter) : 0;
}

struct CharTable {
  bool space[256] = {};
  bool word[256] = {};
  constexpr CharTable() {
    for (char c : {' ', '\t', '\n', '\r'}) space[uint8_t(c)] = true;
    for (int c = 0; c < 256; ++c) {
      word[c] = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                c == '+' || c == '.' || c == '/' || c == '-';
    }
  }
};
inline constexpr CharTable kChars;

inline const char* skip_space(const char* p, const char* end) {
  while (p < end && kChars.space[uint8_t(*p)]) ++p;
  return p;
}

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }

inline uint64_t load8(const char* p) {
  uint64_t word;
  std::memcpy(&word, p, 8);
  return word;
}

constexpr uint64_t kOnes = 0x0101010101010101ull;
constexpr uint64_t kHighs = 0x8080808080808080ull;

inline uint64_t zero_bytes(uint64_t x) { return (x - kOnes) & ~x & kHighs; }

inline unsigned first_byte(uint64_t mask) {
#if defined(__GNUC__) || defined(__clang__)
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  return unsigned(__builtin_ctzll(mask)) >> 3;
#else
  return unsigned(__builtin_clzll(mask)) >> 3;
#endif
#else
  unsigned i = 0;
  while (!(mask & 0xFF)) {
    mask >>= 8;
    ++i;
  }
  return i;
#endif
}

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
constexpr bool kLittleEndian = false;
#else
constexpr bool kLittleEndian = true;
#endif

// How many of the eight bytes are digits before one is not.
inline unsigned digits_in(uint64_t word) {
  const uint64_t x = word ^ (kOnes * 0x30);
  const uint64_t others = ((((x & ~kHighs) + kOnes * 0x76) | x)) & kHighs;
  return others ? first_byte(others) : 8;
}

// Behind the digits at `p`. May look at the padding behind the buffer, which holds none.
inline const char* skip_digits(const char* p) {
  unsigned count;
  do {
    count = digits_in(load8(p));
    p += count;
  } while (count == 8);
  return p;
}

// The number that the first 1 to 8 bytes spell, all of which are digits.
inline uint64_t value_of_digits(uint64_t word, unsigned count) {
  uint64_t x = (word ^ (kOnes * 0x30)) << (8 * (8 - count));
  x = x * 10 + (x >> 8);
  return (((x & 0x000000FF000000FFull) * 0x000F424000000064ull) +
          (((x >> 16) & 0x000000FF000000FFull) * 0x0000271000000001ull)) >> 32;
}

// The number that 1 to 16 bytes spell; false if one of them is no digit. May look at 8 bytes behind them.
inline bool few_digits(const char* p, size_t count, uint64_t& value) {
  static constexpr uint64_t kPowers[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};
  const uint64_t word = load8(p);
  if (count <= 8) {
    if (digits_in(word) < count) return false;
    value = value_of_digits(word, unsigned(count));
    return true;
  }
  const uint64_t rest = load8(p + 8);
  const unsigned more = unsigned(count) - 8;
  if (digits_in(word) < 8 || digits_in(rest) < more) return false;
  value = value_of_digits(word, 8) * kPowers[more] + value_of_digits(rest, more);
  return true;
}

// The next quote, backslash or control character. May look at the padding behind `end`.
inline const char* find_stop(const char* p, const char* end) {
  while (p < end) {
    const uint64_t word = load8(p);
    // A false hit can only stand above a true one, so the first is exact on a little-endian machine;
    // elsewhere the caller's loop goes on after looking at the byte.
    const uint64_t hits =
        zero_bytes(word ^ (kOnes * '"')) | zero_bytes(word ^ (kOnes * '\\')) | ((word - kOnes * 0x20) & ~word & kHighs);
    if (hits) {
      p += first_byte(hits);
      return p < end ? p : end;
    }
    p += 8;
  }
  return end;
}

inline bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

inline bool good_escape(const char* p, const char* end) {
  switch (*p) {
    case '"': case '\\': case '/': case 'b': case 'f': case 'n': case 'r': case 't':
      return true;
    case 'u':
      return end - p >= 5 && is_hex(p[1]) && is_hex(p[2]) && is_hex(p[3]) && is_hex(p[4]);
    default:
      return false;
  }
}

// From an opening quote to behind the closing one: a quote closes if a comma, colon or bracket follows.
// Where there is none, `p` is left where the search for it ended.
inline Status scan_string(const char*& p, const char* end, uint8_t& notes, Token* token = nullptr) {
  const char* const open = p;
  const char* at = p + 1;
  for (;;) {
    at = p = find_stop(at, end);
    if (at == end) return Status::kIncomplete;
    const char stop = *at++;
    if (size_t(at - open) > kMaxString) return Status::kDamaged;
    if (stop == '"') {
      const char* after = at;
      if (!(*after == ',' || *after == ':')) {
        after = skip_space(at, end);
        if (after == end) return Status::kIncomplete;
        if (*after != ',' && *after != ':' && *after != '}' && *after != ']') {
          notes |= kRawQuote;
          continue;
        }
      } else if (after >= end) {
        return Status::kIncomplete;
      }
      if (token) set(*token, open + 1, size_t(at - open - 2), Type::kString);
      p = at;
      return Status::kOk;
    }
    if (stop == '\\') {
      if (at == end) return Status::kIncomplete;
      if (!good_escape(at, end)) notes |= kBadEscape;
      ++at;
    } else if (uint8_t(stop) < 0x20) {
      notes |= kControl;
    }
  }
}

// Number, or word, by its text: -?digits[.digits][e[+-]digits]
inline Type classify_word(const char* p, size_t length) {
  const char* const end = p + length;
  const char* q = p;
  if (q < end && *q == '-') ++q;
  const char* digits = q;
  while (q < end && is_digit(*q)) ++q;
  if (q > digits) {
    if (q == end) return Type::kInteger;
    if (*q == '.') {
      ++q;
      while (q < end && is_digit(*q)) ++q;
    }
    if (q < end && (*q == 'e' || *q == 'E')) {
      const char* mark = q++;
      if (q < end && (*q == '+' || *q == '-')) ++q;
      const char* exponent = q;
      while (q < end && is_digit(*q)) ++q;
      if (q == exponent) q = mark;
    }
    if (q == end) return Type::kNumber;
  }
  if (length == 4 && !std::memcmp(p, "true", 4)) return Type::kTrue;
  if (length == 5 && !std::memcmp(p, "false", 5)) return Type::kFalse;
  if (length == 4 && !std::memcmp(p, "null", 4)) return Type::kNull;
  return Type::kWord;
}

inline Status scan_word(const char*& p, const char* end, uint8_t& notes, Token* token) {
  const char* at = skip_digits(p);
  Type type = Type::kInteger;
  if (*at == '.' && at > p) {
    at = skip_digits(at + 1);
    type = Type::kNumber;
  }
  if (kChars.word[uint8_t(*at)] || at == p) {
    while (at < end && kChars.word[uint8_t(*at)]) ++at;
    if (at == p) return Status::kDamaged;
    if (at < end) type = classify_word(p, size_t(at - p));
  }
  if (at >= end) return Status::kIncomplete;
  const size_t length = size_t(at - p);
  if (type == Type::kWord) notes |= kBareWord;
  if (token) set(*token, p, length, type);
  p = at;
  return Status::kOk;
}

// From an opening bracket to behind its partner. Checks brackets and strings, not what stands between.
inline Status skip_container(const char*& p, const char* end, uint8_t& notes) {
  uint64_t objects = 0;  // one bit per open bracket: whether it is a brace
  int depth = 0;
  const char* at = p;
  while (at < end) {
    const uint64_t word = load8(at);
    // [ ] { } all become 0x7F; so do a few letters, which the switch passes over.
    const uint64_t hits = zero_bytes((word | kOnes * 0x26) ^ (kOnes * 0x7F)) | zero_bytes(word ^ (kOnes * '"'));
    if (!hits) {
      at += 8;
      continue;
    }
    at += first_byte(hits);
    if (at >= end) break;
    switch (*at) {
      case '[': case '{':
        if (depth == kMaxDepth) return Status::kDamaged;
        objects = (objects << 1) | uint64_t(*at == '{');
        ++depth;
        ++at;
        break;
      case ']': case '}':
        if ((objects & 1) != uint64_t(*at == '}')) return Status::kDamaged;
        objects >>= 1;
        ++at;
        if (--depth == 0) {
          p = at;
          return Status::kOk;
        }
        break;
      case '"': {
        const Status status = scan_string(at, end, notes);
        if (status != Status::kOk) return status;
        break;
      }
      default:
        ++at;
    }
  }
  return Status::kIncomplete;
}

inline Status scan_value(const char*& p, const char* end, uint8_t& notes, Token* token) {
  if (*p == '"') return scan_string(p, end, notes, token);
  if (*p == '[' || *p == '{') {
    const char* start = p;
    const Status status = skip_container(p, end, notes);
    if (status == Status::kOk && size_t(p - start) > 0xFFFFFFF0u) return Status::kDamaged;
    if (token) set(*token, start, size_t(p - start), Type::kContainer);
    return status;
  }
  return scan_word(p, end, notes, token);
}

// Whole check of a value, brackets and all; `depth` counts the containers around it.
inline Status check_value(const char*& p, const char* end, uint8_t& notes, int depth = 0) {
  if (p >= end) return Status::kIncomplete;
  if (*p == '"') return scan_string(p, end, notes);
  if (*p != '[' && *p != '{') return scan_word(p, end, notes, nullptr);
  if (depth >= kMaxDepth) return Status::kDamaged;
  const bool object = *p == '{';
  const char close = object ? '}' : ']';
  p = skip_space(p + 1, end);
  for (;;) {
    if (p >= end) return Status::kIncomplete;
    if (*p == close) {
      ++p;
      return Status::kOk;
    }
    if (object) {
      if (*p != '"') return Status::kDamaged;
      const Status status = scan_string(p, end, notes);
      if (status != Status::kOk) return status;
      p = skip_space(p, end);
      if (*p != ':') return Status::kDamaged;
      p = skip_space(p + 1, end);
    }
    const Status status = check_value(p, end, notes, depth + 1);
    if (status != Status::kOk) return status;
    p = skip_space(p, end);
    if (p >= end) return Status::kIncomplete;
    if (*p == ',') {
      p = skip_space(p + 1, end);
    } else if (*p != close) {
      return Status::kDamaged;
    }
  }
}

// An integer, also with an empty fraction ("12.0"); false if the text is none or needs more than 64 bits.
inline bool parse_integer(const Token& token, bool& negative, uint64_t& magnitude) {
  if (token.type == Type::kTrue || token.type == Type::kFalse) {
    negative = false;
    magnitude = token.type == Type::kTrue;
    return true;
  }
  if (token.type != Type::kInteger && token.type != Type::kNumber && token.type != Type::kString) return false;
  const char* p = token.text;
  const char* const end = p + token.length;
  if (kLittleEndian && token.type == Type::kInteger && token.length <= 16 && few_digits(p, token.length, magnitude)) {
    negative = false;
    return true;
  }
  negative = p < end && *p == '-';
  if (negative) ++p;
  const char* const digits = p;
  uint64_t value = 0;
  while (p < end && is_digit(*p)) {
    const uint64_t digit = uint64_t(*p - '0');
    if (value > (UINT64_MAX - digit) / 10) return false;
    value = value * 10 + digit;
    ++p;
  }
  if (p == digits) return false;
  if (p < end && *p == '.') {
    ++p;
    while (p < end && *p == '0') ++p;
  }
  magnitude = value;
  return p == end;
}

inline int64_t to_i64(const Token& token, int64_t null, int bits = 63) {
  bool negative;
  uint64_t magnitude;
  if (!parse_integer(token, negative, magnitude) || magnitude >= (uint64_t(1) << bits)) return null;
  return negative ? -int64_t(magnitude) : int64_t(magnitude);
}

inline uint64_t to_u64(const Token& token) {
  bool negative;
  uint64_t magnitude;
  if (!parse_integer(token, negative, magnitude) || (negative && magnitude)) return UINT64_MAX;
  return magnitude;
}

// Microseconds in text to whole nanoseconds; a half rounds away from zero. False if there is no such time.
inline bool to_nanoseconds(const Token& token, int64_t& result) {
  if (token.type == Type::kTrue || token.type == Type::kFalse) {
    result = token.type == Type::kTrue ? 1000 : 0;
    return true;
  }
  if (token.type != Type::kInteger && token.type != Type::kNumber && token.type != Type::kString) return false;
  if (token.length > 64) return false;
  const char* p = token.text;
  const char* const end = p + token.length;
  const bool negative = p < end && *p == '-';
  if (negative) ++p;
  if (kLittleEndian && end - p >= 5 && end - p <= 19 && end[-4] == '.') {  // what Kineto writes: microseconds.nnn
    uint64_t whole, rest;
    if (few_digits(p, size_t(end - p) - 4, whole) && few_digits(end - 3, 3, rest)) {
      result = int64_t(whole * 1000 + rest);
      if (negative) result = -result;
      return true;
    }
  }
  char digits[64];
  int count = 0;
  while (p < end && is_digit(*p)) digits[count++] = *p++;
  if (!count) return false;
  int whole = count + 3;  // digits before the point of the nanoseconds
  if (p < end && *p == '.') {
    ++p;
    while (p < end && is_digit(*p)) digits[count++] = *p++;
  }
  if (p < end && (*p == 'e' || *p == 'E')) {
    ++p;
    const bool below = p < end && *p == '-';
    if (p < end && (*p == '-' || *p == '+')) ++p;
    const char* const first = p;
    int exponent = 0;
    for (; p < end && is_digit(*p); ++p) {
      if (exponent < 1000) exponent = exponent * 10 + (*p - '0');
    }
    if (p == first || exponent > 30) return false;
    whole += below ? -exponent : exponent;
  }
  if (p != end) return false;
  constexpr uint64_t kLimit = uint64_t(1) << 61;
  uint64_t value = 0;
  for (int i = 0; i < whole; ++i) {
    if (value > kLimit / 10) return false;
    value = value * 10 + (i < count ? uint64_t(digits[i] - '0') : 0);
  }
  if (whole >= 0 && whole < count && digits[whole] >= '5') ++value;
  if (value >= kLimit) return false;
  result = negative ? -int64_t(value) : int64_t(value);
  return true;
}

}  // namespace foretrace
