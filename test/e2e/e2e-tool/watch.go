package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
)

func watchCommand() *cobra.Command {
	var every, report time.Duration
	cmd := &cobra.Command{
		Use:   "watch URL...",
		Short: "Ask each URL again and again, and count what is lost",
		Long: `Ask each URL at fixed times, whether answers come or not, and count what is lost. udp://HOST:PORT is one
flow of numbered datagrams; http://HOST:PORT/ a new connection each time. Each second, and at the end,
it prints one line of JSON for each URL: all counts are since the start, times in milliseconds.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return watch(cmd.Context(), cmd.OutOrStdout(), args, every, report)
		},
	}
	cmd.Flags().DurationVar(&every, "every", 20*time.Millisecond, "time between questions")
	cmd.Flags().DurationVar(&report, "report", time.Second, "time between reports")
	return cmd
}

// late is how long an answer may take before it counts as lost.
const late = 2 * time.Second

// target is one URL that is watched. Questions are numbered from 0.
type target struct {
	url   string
	every time.Duration
	begin time.Time

	mu       sync.Mutex
	sent     int
	answered map[int]bool
}

// summary is what watch prints.
type summary struct {
	URL  string `json:"url"`
	Sent int    `json:"sent"`
	// Lost counts questions that are older than the time that an answer may take, and have none.
	Lost int `json:"lost"`
	// Outage is the longest time in which all were lost, in milliseconds; LastLost is when the last of them was due.
	Outage   int64      `json:"outageMs"`
	LastLost *time.Time `json:"lastLost,omitempty"`
}

func watch(ctx context.Context, out io.Writer, urls []string, every, report time.Duration) error {
	var targets []*target
	var running sync.WaitGroup
	for _, u := range urls {
		t := &target{url: u, every: every, begin: time.Now(), answered: map[int]bool{}}
		ask, err := t.asker(ctx)
		if err != nil {
			return err
		}
		targets = append(targets, t)
		running.Go(func() { t.run(ctx, ask) })
	}
	print := func() error {
		for _, t := range targets {
			if err := json.NewEncoder(out).Encode(t.summary()); err != nil {
				return err
			}
		}
		return nil
	}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(report):
			if err := print(); err != nil {
				return err
			}
		}
	}
	running.Wait()
	time.Sleep(late)
	return print()
}

// asker returns what asks question n.
func (t *target) asker(ctx context.Context) (func(n int), error) {
	u, err := url.Parse(t.url)
	switch {
	case err != nil:
		return nil, err
	case u.Scheme == "udp":
		return t.udp(ctx, u.Host)
	case strings.HasPrefix(u.Scheme, "http"):
		client := &http.Client{Timeout: late, Transport: &http.Transport{DisableKeepAlives: true}}
		return func(n int) { go t.get(client, n) }, nil
	}
	return nil, fmt.Errorf("%s is neither udp:// nor http://", t.url)
}

// udp asks over one socket, which outlives ctx by the time that answers may take.
func (t *target) udp(ctx context.Context, to string) (func(n int), error) {
	conn, err := net.Dial("udp", to)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { time.AfterFunc(late, func() { conn.Close() }) })
	go func() {
		buf := make([]byte, 2048)
		for {
			size, err := conn.Read(buf)
			if err != nil && ctx.Err() != nil {
				return
			}
			var n int
			text := string(buf[:size])
			if _, err := fmt.Sscanf(text[strings.LastIndexByte(text, ' ')+1:], "q%d", &n); err == nil {
				t.answer(n)
			}
		}
	}()
	return func(n int) { fmt.Fprintf(conn, "q%d", n) }, nil
}

func (t *target) get(client *http.Client, n int) {
	answer, err := client.Get(t.url)
	if err != nil {
		return
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err == nil && answer.StatusCode == http.StatusOK {
		t.answer(n)
	}
}

func (t *target) answer(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.answered[n] = true
}

// run asks at fixed times: a busy machine catches up, so an outage does not hide itself.
func (t *target) run(ctx context.Context, ask func(n int)) {
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(t.due(n))):
		}
		t.mu.Lock()
		t.sent = n + 1
		t.mu.Unlock()
		ask(n)
	}
}

func (t *target) due(n int) time.Time { return t.begin.Add(time.Duration(n) * t.every) }

func (t *target) summary() summary {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := summary{URL: t.url, Sent: t.sent}
	row := 0
	for n := 0; n < t.sent && time.Since(t.due(n)) > late; n++ {
		if t.answered[n] {
			row = 0
			continue
		}
		row++
		s.Lost++
		due := t.due(n)
		s.LastLost = &due
		s.Outage = max(s.Outage, (time.Duration(row) * t.every).Milliseconds())
	}
	return s
}
