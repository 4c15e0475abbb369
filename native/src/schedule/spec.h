// The text of a schedule, taken apart: a name and its arguments. Knows no generator.
//
// Grammar, spaces ignored: spec = name [ "(" argument { "," argument } ")" ];
// argument = [ key "=" ] value; a value is any text with balanced parentheses.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kf {

struct Argument {
  std::string key;    // empty when the argument stands without a key
  std::string value;  // never empty
};

struct Spec {
  std::string name;  // lower-case letters, digits and underscores
  std::vector<Argument> arguments;
};

[[noreturn]] void throw_usage(const std::string& message);

// Adds `part` to a list in `text`, behind a separator unless it is the first.
void append(std::string& text, std::string_view part, std::string_view separator = ", ");

// "1,2,3".
std::string join(const std::vector<int>& values);

// Throws Error{usage} with the place of the mistake.
Spec parse_spec(std::string_view text);

// Parts of "a,b(c,d),e" between the commas that stand outside parentheses.
std::vector<std::string> split_top_level(std::string_view text);

// "(1,2,3)" or "1,2,3" -> {1, 2, 3}. `what` names the argument in the error.
std::vector<int> parse_int_list(std::string_view text, const std::string& what);

// Hands out the arguments of one spec; whatever is left at the end is an error.
class Arguments {
 public:
  explicit Arguments(Spec spec) : spec_(std::move(spec)) {}

  const std::string& generator() const noexcept { return spec_.name; }
  bool has(std::string_view key) const noexcept;
  int integer(const std::string& key, int fallback, int least, int most);
  double positive(const std::string& key, double fallback);  // finite and > 0
  std::string text(const std::string& key, const std::string& fallback);
  std::vector<std::string> unnamed();  // all arguments without a key, in order

  // Throws Error{usage} if an argument was given that nobody asked for.
  void finish() const;

 private:
  std::string take(const std::string& key);

  Spec spec_;
  std::vector<std::string> asked_;
};

}  // namespace kf
