// The authenticated connections of one rank, and the TCP transport over them.
#pragma once

#include <memory>
#include <vector>

#include "kf/tcp.h"
#include "kf/transport.h"
#include "transport/tcp/socket.h"

namespace kf {

// Connects to all peers as connect_tcp does; one socket a rank, this rank's own is empty.
std::vector<Fd> connect_mesh(TcpListener& listener, const TcpOptions& options);

class PolledTransport : public Transport {
 public:
  // Readable when progress() may have something to do; so this transport's owner can wait for
  // other things besides.
  virtual int poll_fd() const noexcept = 0;
};

// One socket a rank; where it is empty nothing can be sent.
std::unique_ptr<PolledTransport> make_tcp_transport(std::vector<Fd> sockets);

}  // namespace kf
