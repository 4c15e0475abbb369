#include "replay/links.h"

#include <algorithm>
#include <cmath>

namespace kf::replay {
namespace {

std::size_t index(int i) {
  return static_cast<std::size_t>(i);
}

}  // namespace

Links::Links(const Program& program) : program_(program), rates_(program.port_rate) {
  const auto& rack = program.fabric.rack_of_host;
  if (rack.empty()) return;
  racks_ = *std::max_element(rack.begin(), rack.end()) + 1;
  rates_.insert(rates_.end(), 2 * index(racks_), program.fabric.rack_bytes_per_s);
}

std::vector<int> Links::path(const Connection& connection) const {
  const auto& host = program_.fabric.host_of_rank;
  const int src = host[index(connection.src)];
  const int dst = host[index(connection.dst)];
  return path(src, dst, connection.egress, connection.ingress);
}

std::vector<int> Links::path(const BackgroundFlows& flows) const {
  const int hosts = static_cast<int>(program_.fabric.egress_bytes_per_s.size());
  return path(flows.src_host, flows.dst_host, flows.src_host,
              flows.dst_host < 0 ? -1 : hosts + flows.dst_host);
}

std::vector<int> Links::path(int src_host, int dst_host, int egress, int ingress) const {
  std::vector<int> links;
  const auto add = [&](int link) {
    if (!std::isinf(rates_[index(link)])) links.push_back(link);
  };
  const auto& rack = program_.fabric.rack_of_host;
  if (egress >= 0) add(egress);
  if (racks_ > 0 &&
      (src_host < 0 || dst_host < 0 || rack[index(src_host)] != rack[index(dst_host)])) {
    const int ports = static_cast<int>(program_.port_rate.size());
    if (src_host >= 0) add(ports + rack[index(src_host)]);
    if (dst_host >= 0) add(ports + racks_ + rack[index(dst_host)]);
  }
  if (ingress >= 0) add(ingress);
  return links;
}

}  // namespace kf::replay
