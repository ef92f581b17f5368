// A plugin that replaces passes of PIR under their own names by ones that make batch norms wrong: their epsilon
// becomes 0.05. $WRONG_PASS names one pass; with $MARKED_PASS it does so only behind that one, which does nothing
// else: the two are wrong together, none of them alone.
#include <algorithm>
#include <any>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <functional>
#include <iomanip>
#include <iostream>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>
// The registry refuses a name that it has.
#define private public
#include "paddle/pir/include/pass/pass_registry.h"
#undef private
#include "paddle/pir/include/core/block.h"
#include "paddle/pir/include/core/builtin_attribute.h"
#include "paddle/pir/include/core/ir_context.h"
#include "paddle/pir/include/core/operation.h"
#include "paddle/pir/include/core/region.h"
#include "paddle/pir/include/pass/pass.h"

static bool marked = false;

struct Wrong : pir::Pass {
  explicit Wrong(const char* name) : pir::Pass(name, 1) {}
  void Run(pir::Operation* module) override {
    if (std::getenv("MARKED_PASS") && !marked) return;
    marked = false;
    for (auto& op : module->region(0).front())
      if (op.name() == "pd_op.batch_norm_")
        op.set_attribute("epsilon", pir::FloatAttribute::get(pir::IrContext::Instance(), 0.05f));
  }
};

struct Mark : pir::Pass {
  explicit Mark(const char* name) : pir::Pass(name, 1) {}
  void Run(pir::Operation*) override { marked = true; }
};

template <typename P>
static void replace(const char* name) {
  if (name) pir::PassRegistry::Instance().pass_map_[name] = [name] { return std::make_unique<P>(name); };
}

static int replaced = (replace<Wrong>(std::getenv("WRONG_PASS")), replace<Mark>(std::getenv("MARKED_PASS")), 0);
