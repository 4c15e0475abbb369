// Fuzz targets: functions over arbitrary bytes that must return, whatever the bytes are.
//
// Terms: target: one entry of kTargets; corpus: native/fuzz/corpus/<target>/, inputs that found
//        something or reach code that nothing else reaches.
// Threads: one target at a time in a process.
//
// A target aborts when a promise is broken: a stranger that is let in, a schedule that does
// what it must not, an exception of another class than Error. `make fuzz` runs them under
// libFuzzer; the GoogleTest suite replays the corpus with any compiler.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace kf::fuzz {

using Bytes = std::span<const std::uint8_t>;

void handshake(Bytes input);    // both roles, with and without the job secret
void frames(Bytes input);       // what a peer writes into its TCP connection
void rings(Bytes input);        // what a peer of this host writes into its ring
void negotiation(Bytes input);  // offers and verdicts of shared memory
void rendezvous(Bytes input);   // strangers at the door, and a false server
void schedules(Bytes input);    // texts of schedules

struct Target {
  std::string_view name;
  void (*run)(Bytes);
};
inline constexpr std::array<Target, 6> kTargets = {{
    {"handshake", handshake},
    {"frames", frames},
    {"rings", rings},
    {"negotiation", negotiation},
    {"rendezvous", rendezvous},
    {"schedules", schedules},
}};

// Takes numbers and runs of bytes off the front of an input; zeros when it is empty.
class Input {
 public:
  explicit Input(Bytes bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  std::uint8_t byte() { return static_cast<std::uint8_t>(number(1)); }
  std::uint64_t number(std::size_t width) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < width && !bytes_.empty(); ++i) {
      value |= std::uint64_t{bytes_.front()} << (8 * i);
      bytes_ = bytes_.subspan(1);
    }
    return value;
  }
  std::string_view text(std::size_t most) {
    const std::size_t length = most < bytes_.size() ? most : bytes_.size();
    const std::string_view taken(reinterpret_cast<const char*>(bytes_.data()), length);
    bytes_ = bytes_.subspan(length);
    return taken;
  }
  std::string_view rest() { return text(bytes_.size()); }

 private:
  Bytes bytes_;
};

// Ends the process, so that the input is kept.
[[noreturn]] void broken(const char* promise);
inline void promise(bool kept, const char* what) {
  if (!kept) broken(what);
}

}  // namespace kf::fuzz
