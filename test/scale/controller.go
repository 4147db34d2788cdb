package scale

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/fairlead-cni/fairlead/test/apitest"
)

// Controller is a running fairlead-controller.
type Controller struct {
	// PID is its process.
	PID int

	cmd      *exec.Cmd
	log, url string
}

// StartController starts a fairlead-controller of s, with all features enabled. program is its binary, and dir a
// directory for its files. It ends with the thread that started it.
func StartController(s *apitest.Server, program, dir string) (*Controller, error) {
	port, err := apitest.FreePort()
	if err != nil {
		return nil, err
	}
	token, kubeconfig, config := filepath.Join(dir, "token"), filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "controller.conf")
	err = errors.Join(os.WriteFile(token, []byte(apitest.AdminToken), 0o600),
		apitest.Kubeconfig(kubeconfig, s.URL, s.CA(), token),
		os.WriteFile(config, fmt.Appendf(nil, "apiPort: %d\nclientConnection: {kubeconfig: %q}\n"+
			"reclaim: {gracePeriod: 10s, coolingPeriod: 0s}\nnodeIPAM: {enableNodeIPAM: true, clusterCIDRs: [10.0.0.0/10]}\n",
			port, kubeconfig), 0o600))
	if err != nil {
		return nil, err
	}
	c := &Controller{log: filepath.Join(dir, "log"), url: fmt.Sprintf("http://127.0.0.1:%d", port)}
	log, err := os.Create(c.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	c.cmd = exec.Command(program, "--config", config)
	c.cmd.Stdout, c.cmd.Stderr = log, log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	c.PID = c.cmd.Process.Pid
	return c, nil
}

// Stop stops it, once.
func (c *Controller) Stop() {
	if c.cmd.ProcessState == nil {
		_ = c.cmd.Process.Signal(syscall.SIGTERM) // it may have exited
		_ = c.cmd.Wait()
	}
}

// Ready reports whether its informers have synced.
func (c *Controller) Ready() bool {
	r, err := http.Get(c.url + "/readyz")
	if err != nil {
		return false
	}
	r.Body.Close()
	return r.StatusCode == http.StatusOK
}

// LogTail is the tail of its log.
func (c *Controller) LogTail() string {
	log, _ := os.ReadFile(c.log)
	return string(log[max(0, len(log)-3000):])
}
