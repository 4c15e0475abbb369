// What a peer writes into an authenticated TCP connection: frames, torn and forged.
#include <sys/socket.h>

#include "fuzz.h"
#include "peer.h"
#include "transport/tcp/mesh.h"
#include "transport/wire.h"

namespace kf::fuzz {

void frames(Bytes bytes) {
  Input input(bytes);
  int pair[2];
  promise(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0, "no sockets");
  const Fd mine(pair[1]);
  std::vector<Fd> sockets(2);
  sockets[1] = Fd(pair[0]);
  const auto transport = make_tcp_transport(std::move(sockets));
  Victim victim(*transport, input.byte());
  std::string zeros(1 << 16, '\0');
  const auto put = [&](std::string_view text) {
    [[maybe_unused]] const ssize_t sent =
        ::send(mine.get(), text.data(), text.size(), MSG_NOSIGNAL);
  };
  for (int turn = 0; turn < 64 && !input.empty(); ++turn) {
    const std::uint8_t what = input.byte();
    if (what % 8 == 0) {
      put(input.text(input.byte()));
    } else {
      const Frame frame = frame_from(input);
      const Header header = encode(frame);
      put({reinterpret_cast<const char*>(header.data()), header.size()});
      const std::uint64_t length = what % 8 == 1 ? input.byte() : frame.payload_bytes;
      put({zeros.data(), static_cast<std::size_t>(std::min<std::uint64_t>(length, 1 << 16))});
    }
    for (int i = 0; i < 3; ++i) victim.executor().progress();
    char drained[4096];
    while (::recv(mine.get(), drained, sizeof(drained), 0) > 0) {
    }
    if (victim.executor().death()) break;
  }
}

}  // namespace kf::fuzz
