// Makes and drives the TCP transport of one rank over connections that are already
// authenticated.
#pragma once

#include <memory>
#include <vector>

#include "kf/transport.h"
#include "transport/tcp/socket.h"

namespace kf {

// One socket a rank; this rank's own is empty.
std::unique_ptr<Transport> make_tcp_transport(std::vector<Fd> sockets);

}  // namespace kf
